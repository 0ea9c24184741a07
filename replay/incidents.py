"""What a run went through besides its failures: take-overs, silences, hangs, notices, waits, refusals, late voices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from runfold.events.base import Document
from runfold.events.conclusions import ProgressStopped, SilenceConcluded
from runfold.events.counts import counted
from runfold.events.entry import AnyInput, Entry
from runfold.events.facts import (
    Fact,
    Placed,
    PlacementFailed,
    PreemptionCancelled,
    PreemptionNoticed,
    Queued,
    Reported,
    RunnerReady,
)
from runfold.events.transitions import (
    AnyTransition,
    CheckpointsDoubted,
    CheckpointValidated,
    ControllerChanged,
    FailureDecided,
    FirstCauseRevised,
    LogRestored,
    NodeAdmitted,
    NodeExcluded,
    ReplicaGroupReplaced,
    RequestAccepted,
    RequestRefused,
    ResizeDropped,
    ResizePlanned,
    RunAccepted,
    RunContinued,
    TaskClosed,
    Warned,
)
from runfold.replay.clocks import Clocks
from runfold.replay.history import History
from runfold.replay.words import input_words, kind_of, transition_words

HEARD_LATE_S: Final = 2.0
"""A fact that was under way longer than this was kept from the controller: by its broker, its link, or itself."""

WAITED_S: Final = 1.0
INCIDENTS_MAX_COUNT: Final = 256


class Incident(Document, frozen=True, kw_only=True):
    """Something that a person who asks why may want to know: at which entry and moment, what, and why.

    `kind` is the wire name of the input or transition, or `heard_late`, `waited` and `upload_failed`.
    """

    n: int
    t: float
    kind: str
    what: str
    reason: str = ""
    ranks: tuple[int, ...] = ()
    node: str = ""


def incidents(history: History) -> tuple[Incident, ...]:
    """Return what a run went through, in order; at most `INCIDENTS_MAX_COUNT`, the first of them."""
    seen = Seen()
    for entry in history.entries:
        seen.take(entry)
    return seen.finish()[0]


class _Late:
    """The longest delay of a source in one stretch of late voices."""

    def __init__(self, entry: Entry, source: str) -> None:
        self.first = self.last = entry
        self.source = source
        self.count = 0
        self.delay_s = 0.0


class Seen:
    """The walk through the entries."""

    def __init__(self) -> None:
        self.found: list[Incident] = []
        self.clocks = Clocks()
        self.waits_since: float | None = None
        self.heard: list[_Late] = []
        self.open: dict[str, _Late] = {}
        self.late_s = HEARD_LATE_S
        self.not_uploaded: set[tuple[int, int]] = set()

    def finish(self) -> tuple[tuple[Incident, ...], int]:
        """Return what the entries told, and how much more than that."""
        found = [*self.found, *self._late()]
        found.sort(key=lambda incident: incident.n)
        return tuple(found[:INCIDENTS_MAX_COUNT]), max(0, len(found) - INCIDENTS_MAX_COUNT)

    def take(self, entry: Entry) -> None:
        """Take an entry."""
        found = self.found
        source = ""
        for item in entry.inputs:
            if type(item) is Reported:
                if item.source != source:
                    # A source's facts stand in order: its first in an entry waited longest.
                    source = item.source
                    if item.checkpoint is None and item.upload_error is None:  # else its upload held it back
                        self._hear(entry, item)
                if item.upload_error is not None:
                    found.extend(self._not_uploaded(entry, item, item.upload_error))
                continue
            if isinstance(item, Fact):
                self._hear(entry, item)
            found.extend(self._input(entry, item))
        for transition in entry.transitions:
            if isinstance(transition, RunAccepted):
                # Reports wait at their runner on purpose.
                self.late_s = HEARD_LATE_S + transition.job.timeouts.report_flush_s
            elif _telling(transition):
                found.append(_of_transition(entry, transition))

    def _not_uploaded(self, entry: Entry, item: Reported, why: str) -> Iterator[Incident]:
        """Yield the first upload of a rank in an attempt that failed."""
        if (item.attempt, item.rank) not in self.not_uploaded:
            self.not_uploaded.add((item.attempt, item.rank))
            what = f"rank {item.rank} could not upload the checkpoint of its report {item.index}"
            yield Incident(n=entry.n, t=entry.t, kind="upload_failed", what=what, reason=why, ranks=(item.rank,))

    def _late(self) -> Iterator[Incident]:
        """Yield the stretches in which a source was heard late."""
        for late in self.heard:
            entries = counted(late.count, "entry")
            yield Incident(
                n=late.first.n,
                t=late.first.t,
                kind="heard_late",
                what=f"{late.source} was heard up to {late.delay_s:.1f} s late",
                reason=f"{entries} up to {late.last.n}: its broker or link was down, or it stood still",
                node=late.source,
            )

    def _hear(self, entry: Entry, item: Fact) -> None:
        if isinstance(item, RunnerReady):
            self.clocks.hear(entry, item)
        delay_s = entry.t - self.clocks.when(entry, item)
        if delay_s <= self.late_s:
            if self.open:
                self.open.pop(item.source, None)
            return
        late = self.open.get(item.source)
        if late is None:
            late = self.open[item.source] = _Late(entry, item.source)
            self.heard.append(late)
        late.last, late.count, late.delay_s = entry, late.count + 1, max(late.delay_s, delay_s)

    def _input(self, entry: Entry, item: AnyInput) -> Iterator[Incident]:
        match item:
            case Queued() | PlacementFailed(verdict="busy"):
                self.waits_since = entry.t if self.waits_since is None else self.waits_since
            case Placed() if self.waits_since is not None:
                waited_s, self.waits_since = entry.t - self.waits_since, None
                if waited_s >= WAITED_S:
                    yield Incident(n=entry.n, t=entry.t, kind="waited", what=f"waited {waited_s:.1f} s for room")
            case PreemptionNoticed(nodes=nodes) | PreemptionCancelled(nodes=nodes):
                yield _of_input(entry, item, node=", ".join(nodes))
            case SilenceConcluded(source=source, silence_s=silence_s) if silence_s > 0:
                yield _of_input(entry, item, node=source)
            case ProgressStopped(ranks=ranks) if ranks:
                yield _of_input(entry, item, ranks=ranks)
            case _:
                return


def _of_input(entry: Entry, item: AnyInput, *, ranks: tuple[int, ...] = (), node: str = "") -> Incident:
    what, more = input_words(item)
    return Incident(n=entry.n, t=entry.t, kind=kind_of(item), what=what, reason=more, ranks=ranks, node=node)


_TELLING: Final = (
    NodeExcluded,
    NodeAdmitted,
    RequestAccepted,
    RequestRefused,
    LogRestored,
    FirstCauseRevised,
    RunContinued,
    CheckpointsDoubted,
    ReplicaGroupReplaced,
    ResizePlanned,
    ResizeDropped,
    Warned,
)


def _telling(item: AnyTransition) -> bool:
    if isinstance(item, ControllerChanged):
        return item.epoch > 1
    if isinstance(item, TaskClosed):
        # What ranks that hang are doing: which of them wait, and for whom.
        return item.outcome != "done" or item.task_kind == "stacks"
    if isinstance(item, CheckpointValidated):
        return item.outcome != "validated"
    return isinstance(item, _TELLING) or (isinstance(item, FailureDecided) and item.decision == "noop")


def _of_transition(entry: Entry, item: AnyTransition) -> Incident:
    ranks: tuple[int, ...] = ()
    if isinstance(item, FailureDecided | FirstCauseRevised) and item.failure.rank is not None:
        ranks = (item.failure.rank,)
    elif isinstance(item, Warned):
        ranks = item.ranks
    return Incident(
        n=entry.n,
        t=entry.t,
        kind=kind_of(item),
        what=transition_words(item),
        reason=item.reason,
        ranks=ranks,
        node=getattr(item, "node", ""),
    )
