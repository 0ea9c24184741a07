"""Rules that need the state as it was: one fold of the whole log, with a closer look where something was decided."""

from __future__ import annotations

from typing import Final

from runfold.controller.failing import open_failures
from runfold.events.base import Cause, Moment
from runfold.events.checkpoints import doomed
from runfold.events.edges import IllegalEdge
from runfold.events.entry import AnyInput, Entry
from runfold.events.evolve import evolve
from runfold.events.facts import AnyFact, CheckpointSealed, RankFact, TaskEnded
from runfold.events.failures import Failure, FailureKind, cause_key
from runfold.events.fold import fold
from runfold.events.judge import ABOUT_NODES, OF_PLACES
from runfold.events.observe import observe_all
from runfold.events.state import RunState
from runfold.events.tasks import DELETE
from runfold.events.transitions import (
    AnyTransition,
    CheckpointCommitted,
    FailureDecided,
    FirstCauseRevised,
    RunContinued,
    TaskOrdered,
)
from runfold.replay.finding import Finding
from runfold.replay.history import History, Link
from runfold.replay.rules_run import names_in
from runfold.replay.words import kind_of

_WEIGHED: Final = (FailureDecided, FirstCauseRevised, TaskOrdered)
"""Transitions before which the state is looked at."""

_TOLD_BY_RANKS: Final[frozenset[FailureKind]] = frozenset({"user", "oom", "signal", "exit", "load", "peer"})
"""Failures that only a rank's own end brings about; others may be concluded from timers and silence."""


def walk(history: History) -> tuple[dict[str, list[Finding]], RunState | None]:
    """Fold a history; return what the rules that need its states find, by rule, and the last state."""
    walker = _Walker(history)
    state: RunState | None = None
    for link in history.links:
        try:
            after = walker.step(state, link)
        except (IllegalEdge, ValueError, LookupError) as error:
            walker.find("foldable", link.entry, f"cannot be folded, so nothing behind it can be either: {error}")
            break
        state = after
    return walker.found, state


class _Walker:
    def __init__(self, history: History) -> None:
        self.history = history
        self.found: dict[str, list[Finding]] = {}
        self.began_in: list[int] = []
        self.kept_in: set[int] = set()
        self.trusted: set[str] = set()
        self.start: str | None = None
        self.snapshots = {kept.n: kept for kept in history.snapshots}

    def find(self, rule: str, entry: Entry, what: str) -> None:
        self.found.setdefault(rule, []).append(Finding(rule=rule, n=entry.n, what=what))

    def step(self, before: RunState | None, link: Link) -> RunState:
        """Return the state after an entry, looked at closely where that says something."""
        entry = link.entry
        self.began_in.append(0 if before is None else before.attempt)
        if before is not None and before.group is not None and before.group.kept:
            self.kept_in.add(before.attempt)
        if before is not None and any(isinstance(item, _WEIGHED) for item in entry.transitions):
            after = self._weighed(before, entry)
        else:
            after = fold(before, entry)
        if entry.transitions:
            self._decided(entry, after)
        if before is not None and after.dropped is not before.dropped:
            for item in entry.inputs:
                if isinstance(item, AnyFact):
                    self._write_ahead(before, entry, item)
        if entry.n in self.snapshots:
            self._snapshot(after, link)
        return after

    # --- what was decided

    def _weighed(self, before: RunState, entry: Entry) -> RunState:
        state = observe_all(before, entry.inputs, n=entry.n, t=max(before.t, entry.t), cursor=entry.cursor)
        for k, item in enumerate(entry.transitions):
            if isinstance(item, FailureDecided):
                self._first_cause(state, entry, item)
            elif isinstance(item, FirstCauseRevised):
                self._revision(state, entry, item)
            elif isinstance(item, TaskOrdered) and item.task.kind == DELETE:
                self._deletion(state, entry, item)
            state = evolve(state, item, Moment(n=entry.n, t=state.t, k=k))
        return state

    def _decided(self, entry: Entry, after: RunState) -> None:
        committed = False
        for item in entry.transitions:
            self._stale(entry, item)
            if isinstance(item, CheckpointCommitted):
                committed = True
                self.trusted.add(item.name)
            elif isinstance(item, RunContinued):
                self.trusted.update(one.name for one in item.found)
            elif isinstance(item, TaskOrdered) and item.task.kind == DELETE:
                self.trusted.difference_update(names_in(item.task))
        start = after.group.start if after.group is not None else None
        if start is not None and start != self.start and start not in self.trusted:
            self.find("lineage", entry, f"attempt {after.attempt} begins from {start}, which is not committed")
        self.start = start
        if committed and (left := _doomed(after)):
            self.find("retention", entry, f"more than num_to_keep are kept: {', '.join(sorted(left))} should go")

    def _first_cause(self, state: RunState, entry: Entry, item: FailureDecided) -> None:
        chosen, known = item.failure, open_failures(state)
        if chosen.attempt != state.attempt:
            what = f"decided on a failure of attempt {chosen.attempt} in attempt {state.attempt}"
            self.find("first-cause", entry, what)
        elif chosen.kind in _TOLD_BY_RANKS and chosen.cause not in {failure.cause for failure in known}:
            self.find("first-cause", entry, f"decided on {_who(chosen)}, which no input tells")
        for other in known:
            if cause_key(other) < cause_key(chosen):
                what = f"{_who(chosen)} counts as the first cause, though {_who(other)} comes before it"
                self.find("first-cause", entry, what)

    def _revision(self, state: RunState, entry: Entry, item: FirstCauseRevised) -> None:
        if state.failure != item.was:
            self.find("first-cause", entry, f"revises {_who(item.was)}, which was not the first cause")
        if cause_key(item.failure) >= cause_key(item.was):
            what = f"{_who(item.failure)} is made the first cause, though {_who(item.was)} comes before it"
            self.find("first-cause", entry, what)

    def _deletion(self, state: RunState, entry: Entry, item: TaskOrdered) -> None:
        allowed = _doomed(state)
        kept = {one.name for one in state.checkpoints.kept}
        for name in names_in(item.task):
            if name in kept and name not in allowed:
                self.find("retention", entry, f"{name} is to be deleted though it is among those to keep")

    # --- who was heard

    def _stale(self, entry: Entry, item: AnyTransition) -> None:
        """A transition may not rest on a voice that was stale when it was heard; a revision is what they are for."""
        told = self._input(item.cause, entry)
        if not isinstance(told, AnyFact) or isinstance(item, FirstCauseRevised):
            return
        if isinstance(told, (*ABOUT_NODES, CheckpointSealed, TaskEnded)):
            return  # of nodes, or of a task: true whichever attempt the source had in mind
        n = entry.n if item.cause.entry is None else item.cause.entry
        if isinstance(told, OF_PLACES) and self.began_in[n] in self.kept_in:
            return  # of a place that was looked for, or a runner that was starting, when the attempt began
        if told.attempt < self.began_in[n]:
            what = (
                f"{kind_of(item)} rests on {kind_of(told)} of attempt {told.attempt}, "
                f"heard of in attempt {self.began_in[n]}"
            )
            self.find("stale-voices", entry, what)

    def _input(self, cause: Cause, entry: Entry) -> AnyInput | None:
        n = entry.n if cause.entry is None else cause.entry
        if cause.input is None or not 0 <= n <= entry.n:
            return None
        inputs = self.history.links[n].entry.inputs
        return inputs[cause.input] if 0 <= cause.input < len(inputs) else None

    def _write_ahead(self, before: RunState, entry: Entry, item: AnyFact) -> None:
        """A source that has joined does only what an entry ordered: what it says beyond that was ordered elsewhere."""
        source, group = before.sources.get(item.source), before.group
        if source is None or item.incarnation < source.incarnation:
            return
        if item.incarnation > source.incarnation:
            ahead = f"incarnation {item.incarnation}"
        elif item.attempt > before.attempt:
            ahead = f"attempt {item.attempt}"
        elif isinstance(item, RankFact) and item.attempt == before.attempt and (group is None or not group.ranks):
            ahead = f"rank {item.rank} before the group was laid out"
        else:
            return
        what = f"{item.source} says {kind_of(item)} of {ahead}, which no entry before had ordered"
        self.find("write-ahead", entry, what)

    def _snapshot(self, state: RunState, link: Link) -> None:
        kept = self.snapshots[link.entry.n]
        if kept.hash != link.hash:
            what = f"{kept.kept_by} was made of an entry with the hash {kept.hash[:12]}, not {link.hash[:12]}"
            self.find("snapshots", link.entry, what)
        elif kept.state != state:
            self.find("snapshots", link.entry, f"{kept.kept_by} is not the state that the entries up to here fold into")


def _doomed(state: RunState) -> set[str]:
    newest = state.checkpoint.name if state.checkpoint is not None else None
    return {one.name for one in doomed(state.checkpoints.kept, newest, state.job.checkpoint.num_to_keep)}


def _who(failure: Failure) -> str:
    of_all = "the group" if failure.attempt else "the run"
    who = f"rank {failure.rank}" if failure.rank is not None else failure.node or of_all
    return f"{who}: {failure.error.headline} ({failure.kind})"
