"""A run as a trace that Perfetto and chrome://tracing read: one track a rank, attempts, checkpoints, failures, notes.

The format is Chrome's trace events as JSON: `ts` and `dur` in microseconds of the run's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, assert_never

import msgspec

from runfold.events.conclusions import (
    ControllerStarted,
    JobTaken,
    LogCopied,
    MessageMalformed,
    ProgressStopped,
    SilenceConcluded,
    TimerFired,
)
from runfold.events.entry import AnyInput, Entry
from runfold.events.facts import (
    CapacityChanged,
    CheckpointSealed,
    Placed,
    PlacementFailed,
    PlaceReplaced,
    PreemptionCancelled,
    PreemptionNoticed,
    Queued,
    RankExited,
    RankFailed,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerLost,
    RunnerReady,
    TaskEnded,
)
from runfold.events.requests import Request
from runfold.events.tasks import SEAL, seal_id
from runfold.events.transitions import (
    AnyTransition,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointsDoubted,
    CheckpointValidated,
    ControllerChanged,
    FailureDecided,
    FirstCauseRevised,
    GroupLaidOut,
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
    SourceJoined,
    StateChanged,
    TaskClosed,
    TaskOrdered,
    Warned,
)
from runfold.replay.clocks import Clocks
from runfold.replay.history import History
from runfold.replay.spans import stretches_of
from runfold.replay.tables import flat_metrics
from runfold.replay.uses import micros
from runfold.replay.words import input_words, transition_words

RUN: Final = 1
RANKS: Final = 2
"""Process ids of the trace: what the run as a whole went through, and its ranks."""

STATE, ATTEMPTS, GOODPUT, CHECKPOINTS, FAILURES, NOTES = 1, 2, 3, 4, 5, 6
"""Thread ids of the trace under the run."""

_TRACKS: Final = {
    STATE: "state",
    ATTEMPTS: "attempts",
    GOODPUT: "goodput",
    CHECKPOINTS: "checkpoints",
    FAILURES: "failures",
    NOTES: "notes",
}

Arguments = dict[str, str | float | bool | None]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event: `X` lasts, `i` is a moment, `C` counts, `M` names a track."""

    ph: Literal["X", "i", "C", "M"]
    name: str
    pid: int
    tid: int
    ts: int | None = None
    dur: int | None = None
    cat: str | None = None
    s: Literal["t"] | None = None
    args: Arguments = {}


class Trace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole trace."""

    trace_events: tuple[Event, ...]
    display_time_unit: Literal["ms", "ns"] = "ms"
    other_data: dict[str, str]


def trace(history: History) -> Trace:
    """Return a run as a trace; raise `CannotRead` when it holds no entry."""
    head = history.head
    tracks = _Tracks()
    events = [event for entry in history.entries for event in tracks.take(entry)]
    events.extend(tracks.close(micros(history.entries[head.n].t)))
    events.extend(_goodput(history))
    # Slices that lie in one another must come from the outside in.
    events.sort(key=lambda event: (event.ts or 0, -(event.dur or 0)))
    other = {"run": history.run, "head": f"{head.n}:{head.hash}", "accepted_at": history.entries[0].at}
    return Trace(trace_events=(*_names(history.run, tracks.ranks), *events), other_data=other)


def trace_bytes(history: History) -> bytes:
    """Return the trace as JSON; numbers that JSON cannot say are left out of it."""
    return msgspec.json.encode(trace(history))


def _names(run: str, ranks: set[int]) -> Iterator[Event]:
    yield _name("process_name", RUN, 0, f"run {run}")
    yield _name("process_name", RANKS, 0, "ranks")
    for tid, name in _TRACKS.items():
        yield _name("thread_name", RUN, tid, name)
    for rank in sorted(ranks):
        yield _name("thread_name", RANKS, rank, f"rank {rank}")


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return Event(ph="M", name=kind, pid=pid, tid=tid, args={"name": name})


def _goodput(history: History) -> Iterator[Event]:
    for one in stretches_of(history):
        yield Event(
            ph="X",
            name=one.use.replace("_", " "),
            cat="goodput",
            pid=RUN,
            tid=GOODPUT,
            ts=one.start,
            dur=one.length,
            args={"attempt": one.attempt},
        )


class _Open(msgspec.Struct, frozen=True):
    """A slice that goes on."""

    since: int
    name: str
    args: Arguments


class _Tracks:
    """The tracks while entries are read. `open_`: the slice that goes on, by track."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.ranks: set[int] = set()
        self.open_: dict[tuple[int, int], _Open] = {}
        self.sealing: dict[str, int] = {}
        self.now = 0

    def take(self, entry: Entry) -> Iterator[Event]:
        """Yield the events that an entry completes."""
        self.now = max(self.now, micros(entry.t))
        for item in entry.inputs:
            yield from self._input(entry, item)
        for transition in entry.transitions:
            yield from self._transition(entry, transition)

    def close(self, end: int) -> Iterator[Event]:
        """Yield the slices that were still open at the end."""
        for pid, tid in list(self.open_):
            yield from self._end(pid, tid, end)

    def _begin(self, pid: int, tid: int, ts: int, name: str, args: Arguments) -> Iterator[Event]:
        yield from self._end(pid, tid, ts)
        self.open_[pid, tid] = _Open(ts, name, args)

    def _end(self, pid: int, tid: int, ts: int, **more: str) -> Iterator[Event]:
        held = self.open_.pop((pid, tid), None)
        if held is not None:
            args: Arguments = {**held.args, **more}
            yield Event(ph="X", name=held.name, pid=pid, tid=tid, ts=held.since, dur=max(0, ts - held.since), args=args)

    def _moment(self, pid: int, tid: int, ts: int, name: str, **args: str | float | bool | None) -> Event:
        return Event(ph="i", s="t", name=name, pid=pid, tid=tid, ts=ts, args=args)

    # --- what was seen

    def _input(self, entry: Entry, item: AnyInput) -> Iterator[Event]:
        match item:
            case Reported(rank=rank, index=index):
                ts = micros(self.clocks.when(entry, item))
                yield self._moment(RANKS, rank, ts, f"report {index}", step=item.step, checkpoint=item.checkpoint)
                numbers: Arguments = {
                    name: cell
                    for name, cell in flat_metrics(item.metrics or {})
                    if isinstance(cell, int | float) and not isinstance(cell, bool) and abs(cell) < float("inf")
                }
                if rank == 0 and numbers:
                    yield Event(ph="C", name="metrics of rank 0", pid=RANKS, tid=0, ts=ts, args=numbers)
            case RunnerReady():
                self.clocks.hear(entry, item)
            case RankStarted(rank=rank, attempt=attempt):
                ts = micros(self.clocks.when(entry, item))
                name = f"attempt {attempt}" + (f", life {item.life}" if item.life > 1 else "")
                yield from self._begin(RANKS, rank, ts, name, {"attempt": attempt, "pid": item.pid})
            case RankReturned() | RankFailed() | RankExited():
                yield from self._rank_ends(entry, item)
            case RunnerLost() | ProgressStopped() | SilenceConcluded():
                yield self._noted(FAILURES, entry, item)
            case PreemptionNoticed() | PreemptionCancelled() | CapacityChanged() | Queued() | PlacementFailed():
                yield self._noted(NOTES, entry, item)
            case MessageMalformed() | PlaceReplaced():
                yield self._noted(NOTES, entry, item)
            case Placed() | Released() | CheckpointSealed() | TaskEnded() | Request():
                return  # what is decided on it has its place in the trace
            case JobTaken() | ControllerStarted() | LogCopied() | TimerFired():
                return
            case _:
                assert_never(item)

    def _noted(self, tid: int, entry: Entry, item: AnyInput) -> Event:
        what, more = input_words(item)
        return self._moment(RUN, tid, self.now, what, entry=entry.n, more=more)

    def _rank_ends(self, entry: Entry, item: RankReturned | RankFailed | RankExited) -> Iterator[Event]:
        ts, (what, more) = micros(self.clocks.when(entry, item)), input_words(item)
        held = self.open_.get((RANKS, item.rank))
        if held is not None and held.args.get("attempt") == item.attempt:
            yield from self._end(RANKS, item.rank, max(ts, held.since), ended=f"{what}: {more}" if more else what)
        if isinstance(item, RankFailed):
            yield self._moment(
                RUN, FAILURES, ts, what, attempt=item.attempt, rank=item.rank, error=more, where=item.error.where
            )

    # --- what was decided

    def _transition(self, entry: Entry, item: AnyTransition) -> Iterator[Event]:
        match item:
            case StateChanged(to_state=state, reason=reason):
                if (RUN, STATE) not in self.open_:
                    self.open_[RUN, STATE] = _Open(0, item.from_state, {})
                yield from self._begin(RUN, STATE, self.now, state, {"entry": entry.n, "reason": reason})
            case AttemptStarted(attempt=attempt, num_workers=workers, reason=reason):
                args: Arguments = {"entry": entry.n, "ranks": workers, "reason": reason}
                yield from self._begin(RUN, ATTEMPTS, self.now, f"attempt {attempt}", args)
            case GroupLaidOut(layout=layout):
                for laid in layout:
                    self.ranks.add(laid.rank)
                    yield from self._begin(RANKS, laid.rank, self.now, "starting", {"attempt": None})
            case ReplicaGroupReplaced(layout=layout):
                for laid in layout:
                    yield from self._begin(RANKS, laid.rank, self.now, "starting", {"attempt": None})
                yield self._decided(NOTES, entry, item)
            case FailureDecided() | FirstCauseRevised():
                yield self._decided(FAILURES, entry, item)
            case TaskOrdered(task=task):
                if task.kind == SEAL:
                    self.sealing[task.id] = self.now
            case CheckpointCommitted(name=name):
                since = self.sealing.pop(seal_id(name), self.now)
                args = {"entry": entry.n, "index": item.index, "attempt": item.attempt, "bytes": item.size_bytes}
                yield Event(
                    ph="X", name=name, pid=RUN, tid=CHECKPOINTS, ts=since, dur=max(0, self.now - since), args=args
                )
            case CheckpointValidated() | CheckpointsDoubted() | RunContinued():
                yield self._decided(CHECKPOINTS, entry, item)
            case ControllerChanged() | LogRestored() | Warned() | NodeExcluded() | NodeAdmitted():
                yield self._decided(NOTES, entry, item)
            case RequestAccepted() | RequestRefused() | ResizePlanned() | ResizeDropped():
                yield self._decided(NOTES, entry, item)
            case RunAccepted() | SourceJoined() | TaskClosed():
                return  # nothing that a reader of a trace looks for
            case _:
                assert_never(item)

    def _decided(self, tid: int, entry: Entry, item: AnyTransition) -> Event:
        return self._moment(RUN, tid, self.now, transition_words(item), entry=entry.n, reason=item.reason)
