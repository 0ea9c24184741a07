"""Two moments of a run, or two runs, beside each other."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runfold.events.base import Document, Json
from runfold.events.counts import counted
from runfold.events.entry import Entry
from runfold.events.facts import Reported
from runfold.events.transitions import (
    AnyTransition,
    AttemptStarted,
    CheckpointCommitted,
    FailureDecided,
    FirstCauseRevised,
    NodeAdmitted,
    NodeExcluded,
    ReplicaGroupReplaced,
    RequestAccepted,
    RequestRefused,
    ResizeDropped,
    ResizePlanned,
    RunAccepted,
    RunContinued,
    StateChanged,
)
from runfold.replay.at import Snapshot, state_at
from runfold.replay.differ import Change, changes
from runfold.replay.errors import CannotRead
from runfold.replay.history import History
from runfold.replay.rows import Row
from runfold.replay.story import Setback, story
from runfold.replay.timeline import timeline
from runfold.replay.verify import Decided, in_words
from runfold.replay.words import input_words

_OF_EVERY_ENTRY = frozenset({"n", "t", "cursor[0]", "cursor[1]"})
_OF_EVERY_RUN = frozenset({"id"})


class Point(Document, frozen=True, kw_only=True):
    """A moment: after entry `n`."""

    n: int
    t: float
    at: str


class MomentDiff(Document, frozen=True, kw_only=True):
    """What changed of the state between two moments, and the rows of the timeline in between."""

    run: str
    a: Point
    b: Point
    reports: int
    changes: tuple[Change, ...]
    rows: tuple[Row, ...]


class Side(Document, frozen=True, kw_only=True):
    """A run at a glance, for the comparison."""

    run: str
    target: str
    state: str
    reason: str
    duration_s: float
    attempts: int
    reports: int
    goodput: float | None
    first_cause: Setback | None


class Turn(Document, frozen=True, kw_only=True):
    """What one run did at the point where two part: entry, moment, decision, and what it was decided on."""

    n: int
    t: float
    decided: Decided
    on: tuple[str, ...]


class Parted(Document, frozen=True, kw_only=True):
    """Where two runs part: the first decision that is not the same. None: that run decides nothing more."""

    left: Turn | None
    right: Turn | None


class RunDiff(Document, frozen=True, kw_only=True):
    """Two runs: how they were configured, how many decisions they share, where they part, what came of them."""

    left: Side
    right: Side
    configuration: tuple[Change, ...]
    alike: int
    parted: Parted | None


def diff_moments(history: History, a: str, b: str) -> MomentDiff:
    """Return what changed between two moments of a run, the earlier first. Raises what `state_at` raises."""
    first, second = sorted((state_at(history, a), state_at(history, b)), key=lambda snapshot: snapshot.n)
    rows = timeline(history).rows
    between = history.entries[first.n + 1 : second.n + 1]
    return MomentDiff(
        run=history.run,
        a=_point(first),
        b=_point(second),
        reports=sum(1 for entry in between for item in entry.inputs if type(item) is Reported),
        changes=changes(first.state, second.state, _OF_EVERY_ENTRY),
        rows=tuple(row for row in rows if row.last_n > first.n and row.n <= second.n),
    )


def diff_runs(left: History, right: History) -> RunDiff:
    """Return what distinguishes two runs. Raises `CannotRead` when one of them has no entry."""
    ours, theirs = _course(left), _course(right)
    alike = 0
    for (_, one), (_, other) in zip(ours, theirs, strict=False):
        if essence(one) != essence(other):
            break
        alike += 1
    parted = None
    if alike < max(len(ours), len(theirs)):
        parted = Parted(left=_turn(ours, alike), right=_turn(theirs, alike))
    return RunDiff(
        left=_side(left),
        right=_side(right),
        configuration=changes(_job(left), _job(right), _OF_EVERY_RUN),
        alike=alike,
        parted=parted,
    )


def _point(snapshot: Snapshot) -> Point:
    return Point(n=snapshot.n, t=snapshot.t, at=snapshot.at)


def _job(history: History) -> object:
    for link in history.links:
        for item in link.entry.transitions:
            if isinstance(item, RunAccepted):
                return item.job
    raise CannotRead(f"{history.target}: no entry accepts a run")


def _side(history: History) -> Side:
    told = story(history)
    return Side(
        run=told.run,
        target=history.target,
        state=told.state,
        reason=told.reason,
        duration_s=told.duration_s,
        attempts=told.attempts,
        reports=told.reports,
        goodput=told.goodput.goodput,
        first_cause=told.first_cause,
    )


_COURSE = (
    StateChanged,
    AttemptStarted,
    FailureDecided,
    FirstCauseRevised,
    RequestAccepted,
    RequestRefused,
    CheckpointCommitted,
    NodeExcluded,
    NodeAdmitted,
    ReplicaGroupReplaced,
    ResizePlanned,
    ResizeDropped,
    RunContinued,
)
"""Decisions that make a run what it is. In which order sources join, and who takes over, is left out."""


def _course(history: History) -> list[tuple[Entry, AnyTransition]]:
    return [(entry, item) for entry in history.telling for item in entry.transitions if isinstance(item, _COURSE)]


_DETAILS = frozenset({"reason", "cause", "limit", "spent", "deadline_t", "not_before_t", "manifest_digest", "id", "by"})
_OF_FAILURES = ("kind", "attempt", "rank", "node")


def essence(item: AnyTransition) -> tuple[tuple[str, object], ...]:
    """Return what a decision comes to: without words, times, limits and numbers that only count.

    Of a failure it keeps whose it was and of which kind.
    """
    kept: list[tuple[str, object]] = [("", type(item).__name__)]
    for name, value in msgspec.structs.asdict(item).items():
        if name in _DETAILS or isinstance(item, RunAccepted):
            continue
        if name in ("failure", "was") and value is not None:
            kept.append((name, tuple(getattr(value, field) for field in _OF_FAILURES)))
        elif name not in ("metrics", "score", "size_bytes", "others", "found"):
            kept.append((name, value))
    return tuple(kept)


def _turn(course: list[tuple[Entry, AnyTransition]], place: int) -> Turn | None:
    if place >= len(course):
        return None
    entry, item = course[place]
    return Turn(n=entry.n, t=entry.t, decided=in_words(item), on=tuple(told(entry)))


def told(entry: Entry) -> Iterator[str]:
    """Yield what an entry's inputs say, reports as their number."""
    reports = 0
    for item in entry.inputs:
        if type(item) is Reported:
            reports += 1
            continue
        what, more = input_words(item)
        yield f"{what}: {more}" if more else what
    if reports:
        yield counted(reports, "report")


def packed(value: Json) -> str:
    """Return a leaf as text."""
    return "nothing" if value is None else msgspec.json.encode(value).decode()
