"""The rules of the audit. Each has an id, says in one line what it means and in one what to do, and checks a history.

A rule is a function from a history to findings; another rule is one more row of `RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from runfold.events.base import Document
from runfold.events.edges import EDGES, IllegalEdge
from runfold.events.entry import Entry
from runfold.events.failures import Budget
from runfold.events.fold import fold
from runfold.events.state import RunState
from runfold.events.transitions import (
    AnyTransition,
    AttemptStarted,
    ControllerChanged,
    FailureDecided,
    LogRestored,
    RunAccepted,
    SourceJoined,
    StateChanged,
    StateName,
)
from runfold.replay.history import Flaw, History, Where, end_name
from runfold.replay.words import kind_of


class Finding(Document, frozen=True, kw_only=True):
    """Something that a rule forbids: at which entry, where it stands, what it is."""

    rule: str
    what: str
    n: int | None = None
    where: Where | None = None


Check = Callable[[History], Iterator[Finding]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule: what it means, what to do when it is broken, and how it is checked."""

    id: str
    meaning: str
    advice: str
    check: Check


def _damages(rule: str, *flaws: Flaw) -> Check:
    def check(history: History) -> Iterator[Finding]:
        for damage in history.damages:
            if damage.flaw in flaws:
                yield Finding(rule=rule, n=damage.n, where=damage.where, what=damage.what)

    return check


def _transitions(history: History) -> Iterator[tuple[Entry, AnyTransition]]:
    for link in history.links:
        for transition in link.entry.transitions:
            yield link.entry, transition


def _whole(history: History) -> Iterator[Finding]:
    yield from _damages("whole", "truncated", "segment", "manifest", "blob", "output", "foreign")(history)
    if not history.links and not history.damages:
        yield Finding(rule="whole", what=f"no entry of a run stands in {history.target}")


def _head(history: History) -> Iterator[Finding]:
    yield from _damages("head", "head")(history)
    for known in history.heads:
        n = known.head.n
        if n >= len(history.links):
            what = f"{known.kept_by} knows entry {n}; the log that can be believed ends with {len(history.links) - 1}"
            yield Finding(rule="head", n=len(history.links), what=what)
        elif history.links[n].hash != known.head.hash:
            what = f"entry {n} has the hash {history.links[n].hash[:12]}, {known.kept_by} knows {known.head.hash[:12]}"
            yield Finding(rule="head", n=n, where=history.links[n].where, what=what)


def _strays(history: History) -> Iterator[Finding]:
    for stray in history.strays:
        yield Finding(rule="strays", n=stray.n, where=stray.where, what=f"not the next entry: {stray.reason}")


def _first_entry(history: History) -> Iterator[Finding]:
    if not history.links:
        return
    first = history.links[0].entry
    kinds = [type(transition) for transition in first.transitions]
    for kind in (RunAccepted, ControllerChanged):
        if kinds.count(kind) != 1:
            what = f"entry 0 holds {kinds.count(kind)} transitions {kind_of_type(kind)}, not 1"
            yield Finding(rule="first-entry", n=0, what=what)
    for entry, transition in _transitions(history):
        if isinstance(transition, RunAccepted) and entry.n > 0:
            yield Finding(rule="first-entry", n=entry.n, what="the run is accepted a second time")


def kind_of_type(kind: type[AnyTransition]) -> str:
    """Return the wire name of a kind."""
    return str(kind.__struct_config__.tag)


def _legal_edges(history: History) -> Iterator[Finding]:
    state: StateName = "initializing"
    for entry, transition in _transitions(history):
        if not isinstance(transition, StateChanged):
            continue
        before, after = transition.from_state, transition.to_state
        if before != state:
            what = f"{before} → {after}, but the state was {state}"
            yield Finding(rule="legal-edges", n=entry.n, what=what)
        elif after not in EDGES[before]:
            yield Finding(rule="legal-edges", n=entry.n, what=f"{before} → {after} is no edge of the state machine")
        state = after


def _terminal_final(history: History) -> Iterator[Finding]:
    ended: StateName | None = None
    for entry, transition in _transitions(history):
        if ended is not None and not isinstance(transition, LogRestored):
            yield Finding(rule="terminal-final", n=entry.n, what=f"{kind_of(transition)} after the run was {ended}")
        if isinstance(transition, StateChanged) and ended is None:
            ended = end_name(transition.to_state)


def _reasons(history: History) -> Iterator[Finding]:
    for entry, transition in _transitions(history):
        if not transition.reason.strip():
            yield Finding(rule="reason", n=entry.n, what=f"{kind_of(transition)} gives no reason")


def _causes(history: History) -> Iterator[Finding]:
    for entry, transition in _transitions(history):
        cause = transition.cause
        n = entry.n if cause.entry is None else cause.entry
        if not 0 <= n <= entry.n:
            yield Finding(rule="cause", n=entry.n, what=f"{kind_of(transition)} names entry {n} as its cause")
            continue
        there = history.links[n].entry
        place, items = (cause.transition, there.transitions) if cause.input is None else (cause.input, there.inputs)
        if place is None or not 0 <= place < len(items):
            what = f"{kind_of(transition)} names a cause that does not stand in entry {n}"
            yield Finding(rule="cause", n=entry.n, what=what)


def _clock(history: History) -> Iterator[Finding]:
    t = 0.0
    for link in history.links:
        entry = link.entry
        if not math.isfinite(entry.t) or entry.t < t:
            yield Finding(rule="clock", n=entry.n, what=f"the run's clock goes from {t:.6f} to {entry.t:.6f}")
        t = max(t, entry.t) if math.isfinite(entry.t) else t


def _attempts(history: History) -> Iterator[Finding]:
    attempt = 0
    for entry, transition in _transitions(history):
        if isinstance(transition, AttemptStarted):
            if transition.attempt != attempt + 1:
                what = f"attempt {transition.attempt} follows attempt {attempt}"
                yield Finding(rule="attempts", n=entry.n, what=what)
            attempt = transition.attempt


def _single_writer(history: History) -> Iterator[Finding]:
    epoch, controller = 0, ""
    for link in history.links:
        entry = link.entry
        for transition in entry.transitions:
            if isinstance(transition, ControllerChanged):
                if transition.epoch != epoch + 1:
                    what = f"epoch {transition.epoch} follows epoch {epoch}"
                    yield Finding(rule="single-writer", n=entry.n, what=what)
                epoch, controller = transition.epoch, transition.controller
        if (entry.epoch, entry.by) != (epoch, controller):
            what = (
                f"written by {entry.by!r} in epoch {entry.epoch}; the run belonged to {controller!r} in epoch {epoch}"
            )
            yield Finding(rule="single-writer", n=entry.n, what=what)


def _budgets(history: History) -> Iterator[Finding]:
    spent: dict[Budget, int] = {}
    charged: set[int] = set()
    resets = False
    for entry, transition in _transitions(history):
        if isinstance(transition, RunAccepted):
            resets = transition.job.failure.reset_after_progress is not None
        if not isinstance(transition, FailureDecided) or transition.budget is None:
            continue
        name, attempt, retried = transition.budget, transition.failure.attempt, transition.decision == "retry"
        before = spent.get(name, 0)
        if retried and attempt in charged:
            yield Finding(rule="budgets", n=entry.n, what=f"attempt {attempt} is charged a second time")
        # Only a retry spends; what ends the run states what was spent before it.
        expected = {before + retried, int(retried)} if resets else {before + retried}
        if transition.spent not in expected:
            what = f"the {name} budget goes from {before} to {transition.spent} on a {transition.decision}"
            yield Finding(rule="budgets", n=entry.n, what=what)
        if retried and 0 <= transition.limit < transition.spent:
            what = f"a retry on {transition.spent} of {transition.limit} of the {name} budget"
            yield Finding(rule="budgets", n=entry.n, what=what)
        charged.update({attempt} if retried else ())
        spent[name] = transition.spent


def _incarnations(history: History) -> Iterator[Finding]:
    given: dict[str, int] = {}
    for entry, transition in _transitions(history):
        if isinstance(transition, SourceJoined):
            before = given.get(transition.source, 0)
            if transition.incarnation != before + 1:
                what = f"{transition.source} is given incarnation {transition.incarnation} after {before}"
                yield Finding(rule="incarnations", n=entry.n, what=what)
            given[transition.source] = transition.incarnation


def _foldable(history: History) -> Iterator[Finding]:
    state: RunState | None = None
    for link in history.links:
        try:
            state = fold(state, link.entry)
        except (IllegalEdge, ValueError, LookupError) as error:
            what = f"cannot be folded, so nothing behind it can be either: {error}"
            yield Finding(rule="foldable", n=link.entry.n, what=what)
            return


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="whole",
        meaning="the file, archive or stream is read to its end, and every part is as it was written",
        advice="take another copy; the entries named here and behind them are lost in this one",
        check=_whole,
    ),
    Rule(
        id="chain",
        meaning="each entry names the hash of the bytes before it, so none was changed, and none put in between",
        advice="believe nothing from that entry on; restore the run's log from an archive that is clean",
        check=_damages("chain", "break"),
    ),
    Rule(
        id="numbering",
        meaning="entries are numbered 0, 1, 2, … without a hole",
        advice="look for the missing entry in another copy; believe nothing behind the hole",
        check=_damages("numbering", "gap"),
    ),
    Rule(
        id="head",
        meaning="the log holds every head that was kept outside it, and ends no earlier",
        advice="the log lost its end, or its end was rewritten: compare with the archive and the assignment",
        check=_head,
    ),
    Rule(
        id="strays",
        meaning="nothing but the controller's entries stands on the subject or in the file",
        advice="harmless to the run, since it is skipped; find out who may publish on log subjects",
        check=_strays,
    ),
    Rule(
        id="first-entry",
        meaning="entry 0, and no other, accepts the run and names its first controller",
        advice="this is not the beginning of a run's log; report it with an export",
        check=_first_entry,
    ),
    Rule(
        id="legal-edges",
        meaning="every change of state starts from the state that was, and is an edge of the state machine",
        advice="a decider is wrong, or the log was written by something else; report it with an export",
        check=_legal_edges,
    ),
    Rule(
        id="terminal-final",
        meaning="finished, errored and aborted are never left, and nothing is decided after them",
        advice="report it with an export; trust the first end",
        check=_terminal_final,
    ),
    Rule(
        id="reason",
        meaning="every transition gives its reason in words",
        advice="report it with an export: a policy decided without saying why",
        check=_reasons,
    ),
    Rule(
        id="cause",
        meaning="every transition points to what brought it about, in its own entry or an earlier one",
        advice="report it with an export",
        check=_causes,
    ),
    Rule(
        id="clock",
        meaning="the run's clock never goes back",
        advice="durations around that entry mean nothing; report it with an export",
        check=_clock,
    ),
    Rule(
        id="attempts",
        meaning="attempts are numbered 1, 2, 3, …",
        advice="report it with an export",
        check=_attempts,
    ),
    Rule(
        id="single-writer",
        meaning="each entry is by the controller and in the epoch that ControllerChanged named last; epochs go up by 1",
        advice="two controllers wrote at once, or one wrote after it was fenced; report it with an export",
        check=_single_writer,
    ),
    Rule(
        id="budgets",
        meaning="a failed attempt spends at most one unit of one budget, counted without a hole, within its limit",
        advice="the run was tried too often or too seldom; report it with an export",
        check=_budgets,
    ),
    Rule(
        id="incarnations",
        meaning="each start of a source is given the next incarnation",
        advice="facts may have been counted twice or lost; report it with an export",
        check=_incarnations,
    ),
    Rule(
        id="foldable",
        meaning="every entry folds into a state",
        advice="the state behind that entry is unknown to this version; try the version that wrote it",
        check=_foldable,
    ),
)
"""All rules, in the order in which they are looked at and shown."""
