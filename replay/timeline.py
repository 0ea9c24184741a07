"""The timeline: a history as rows, what happened and what was decided on it, with reasons, causes and gaps.

Stretches of reports are folded into one row ("412 reports"), and so are ranks that did the same one after another.
What followed from an attempt's first cause stands below it (`blocks.py`); every row has a number, by which causes are
linked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from runfold.events.base import Cause
from runfold.events.conclusions import ControllerStarted, JobTaken, LogCopied
from runfold.events.entry import AnyInput, Entry
from runfold.events.facts import Fact, RankExited, RankFailed, RankReturned, RankStarted, Reported, RunnerLost
from runfold.events.requests import Join
from runfold.events.transitions import (
    AnyTransition,
    AttemptStarted,
    FailureDecided,
    FirstCauseRevised,
    StateChanged,
)
from runfold.replay.blocks import Built, Key, arranged, key_of
from runfold.replay.history import History
from runfold.replay.rows import Pointer, Row, RowError, Timeline, row_error
from runfold.replay.stretch import ReportStretch
from runfold.replay.words import input_words, kind_of, ranks_did, transition_words

__all__ = ["Pointer", "Row", "RowError", "Timeline", "row_error", "timeline"]

_SAID_BY_TRANSITION = (Join, JobTaken, ControllerStarted, LogCopied)
"""Inputs without a row: the transition that answers them in the same entry says the same."""


def timeline(
    history: History, *, attempt: int | None = None, rank: int | None = None, since_t: float | None = None
) -> Timeline:
    """Return the rows of a history: all of them, or those of an attempt, of a rank, or from a moment on.

    Rows keep their numbers, and their gaps to the row before in the whole log, whichever are left out.
    """
    rows = _numbered(arranged(_folded(RowMaker(history.entries, rank, history.telling).all()), history.telling))
    kept = [row for row in with_gaps(rows) if _wanted(row, attempt, rank, since_t)]
    return Timeline(
        run=history.run,
        entries=len(history.links),
        rows=tuple(kept),
        skipped=len(history.strays),
        trouble=history.trouble,
    )


def _wanted(row: Row, attempt: int | None, rank: int | None, since_t: float | None) -> bool:
    if attempt is not None and row.attempt != attempt:
        return False
    if since_t is not None and row.until_t < since_t:
        return False
    if rank is None or row.kind == "state_changed":
        return True
    return row.count > 0 and (rank in row.ranks or (row.error is not None and row.error.rank == rank))


def with_gaps(rows: Iterator[Row], until: float = 0.0) -> Iterator[Row]:
    """Yield rows with the time since the one before, which stood until `until`; those out of order have none."""
    for row in rows:
        moved = row.collateral or row.late_s is not None
        yield msgspec.structs.replace(row, gap_s=round(row.t - until, 6) if row.t > until and not moved else 0.0)
        until = until if moved else max(until, row.until_t)


class RowMaker:
    """The rows of entries in the order of the log, before anything is folded, moved or left out."""

    def __init__(self, entries: Sequence[Entry], rank: int | None, telling: Sequence[Entry] = ()) -> None:
        self.entries = entries
        self.rank = rank
        self.targets = _targets(telling)
        self.target_entries = {n for n, _, _ in self.targets}
        self.told: set[tuple[int, int]] = set()
        self.attempt: int | None = None
        self.stretch: ReportStretch | None = None
        self.held: list[Key] = []

    def all(self) -> Iterator[Built]:
        """Yield the rows of all entries."""
        for entry in self.entries:
            yield from self.take(entry)
        yield from self.flush()

    def take(self, entry: Entry) -> Iterator[Built]:
        """Yield the rows of one more entry, as far as they are complete."""
        for k, item in enumerate(entry.inputs):
            if type(item) is Reported:
                self._report(entry, k, item)
            elif not isinstance(item, _SAID_BY_TRANSITION):
                yield from self.flush()
                yield self._input(entry, k, item)
        if entry.transitions:
            yield from self.flush()
            for k, transition in enumerate(entry.transitions):
                yield self._transition(entry, k, transition)

    def _report(self, entry: Entry, k: int, item: Reported) -> None:
        if self.stretch is None:
            self.stretch = ReportStretch(entry, self.attempt, self.rank)
        self.stretch.add(entry, item)
        if entry.n in self.target_entries and (entry.n, False, k) in self.targets:
            self.held.append((entry.n, False, k))

    def flush(self) -> Iterator[Built]:
        """Yield the row of the reports taken so far, if there were any."""
        if self.stretch is not None:
            yield Built(self.stretch.row(), self.held)
            self.stretch, self.held = None, []

    def _input(self, entry: Entry, k: int, item: AnyInput) -> Built:
        what, more = input_words(item)
        rank: int | None = getattr(item, "rank", None)
        error: RowError | None = None
        output, failed = "", isinstance(item, RankFailed | RunnerLost)
        if isinstance(item, RankFailed):
            error = row_error(item.error, item.rank, item.source)
            self.told.add((item.attempt, item.rank))
        elif isinstance(item, RankExited) and not (
            item.asked or item.returned or (item.attempt, item.rank) in self.told
        ):
            output, failed = item.last_lines, True
        row = msgspec.structs.replace(
            _row(entry, item, what, more),
            attempt=item.attempt if isinstance(item, Fact) else self.attempt,
            ranks=() if rank is None else (rank,),
            error=error,
            output=output,
        )
        return Built(row, [(entry.n, False, k)], failed=failed)

    def _transition(self, entry: Entry, k: int, item: AnyTransition) -> Built:
        error: RowError | None = None
        attempt = self.attempt
        ranks: tuple[int, ...] = ()
        if isinstance(item, AttemptStarted):
            attempt = self.attempt = item.attempt
        elif isinstance(item, FailureDecided | FirstCauseRevised):
            failure = item.failure
            attempt, ranks = failure.attempt, () if failure.rank is None else (failure.rank,)
            # The traceback stands in the row of the rank that told of it; once is enough.
            if failure.rank is None or (failure.attempt, failure.rank) not in self.told:
                error = row_error(failure.error, failure.rank, failure.node)
        path = (item.from_state, item.to_state) if isinstance(item, StateChanged) else ()
        row = msgspec.structs.replace(
            _row(entry, item, transition_words(item), item.reason),
            before=path[0] if path else None,
            after=path[1] if path else None,
            path=path,
            cause=_pointer(item.cause, entry, self.entries),
            error=error,
            attempt=attempt,
            ranks=ranks,
        )
        return Built(row, [(entry.n, True, k)])


def _targets(entries: Sequence[Entry]) -> set[Key]:
    """Return everything that a transition names as its cause."""
    return {key_of(item.cause, entry.n) for entry in entries for item in entry.transitions}


def _row(entry: Entry, item: AnyInput | AnyTransition, what: str, reason: str) -> Row:
    return Row(
        n=entry.n,
        last_n=entry.n,
        t=entry.t,
        until_t=entry.t,
        at=entry.at,
        gap_s=0.0,
        kind=kind_of(item),
        what=what,
        reason=reason,
    )


def _pointer(cause: Cause, entry: Entry, entries: Sequence[Entry]) -> Pointer | None:
    """Return what a cause points to; None when it points to nothing that stands in the log."""
    n = entry.n if cause.entry is None else cause.entry
    if not 0 <= n < len(entries):
        return None
    items = entries[n].transitions if cause.input is None else entries[n].inputs
    place = cause.transition if cause.input is None else cause.input
    if place is None or not 0 <= place < len(items):
        return None
    return Pointer(n=n, kind=kind_of(items[place]), input=cause.input, transition=cause.transition)


def _numbered(built: Sequence[Built]) -> Iterator[Row]:
    """Yield rows with their numbers, and causes with the number of the row that tells of them."""
    numbers = {key: number for number, one in enumerate(built, start=1) for key in one.holds}
    return (numbered(one.row, number, numbers) for number, one in enumerate(built, start=1))


def numbered(row: Row, number: int, numbers: Mapping[Key, int]) -> Row:
    """Return a row with its number, and its cause with the number of the row that tells of it."""
    cause = row.cause
    if cause is not None:
        place = cause.transition if cause.input is None else cause.input
        cause = msgspec.structs.replace(cause, row=numbers.get((cause.n, cause.input is None, place or 0)))
    return msgspec.structs.replace(row, number=number, last_number=number, cause=cause)


# --- ranks that did the same

_FOLDED_KINDS = frozenset(kind.__struct_config__.tag for kind in (RankStarted, RankReturned, RankExited))


def _folded(rows: Iterator[Built]) -> Iterator[Built]:
    """Fold ranks that did the same one after another into one row."""
    alike: list[Built] = []
    for one in rows:
        if alike and not _same(alike[0].row, one.row):
            yield joined(alike)
            alike = []
        alike.append(one)
    if alike:
        yield joined(alike)


def _same(first: Row, row: Row) -> bool:
    if row.kind not in _FOLDED_KINDS or row.output or first.output:
        return False
    return (first.kind, first.attempt, verb(first)) == (row.kind, row.attempt, verb(row))


def verb(row: Row) -> str:
    """Return what a rank did, without saying which."""
    return row.what.partition(" ")[2].partition(" ")[2]


def joined(built: Sequence[Built]) -> Built:
    """Return one row for ranks that did the same."""
    first, last = built[0].row, built[-1].row
    if len(built) == 1:
        return built[0]
    ranks = tuple(sorted({rank for one in built for rank in one.row.ranks}))
    reasons = {one.row.reason for one in built}
    row = msgspec.structs.replace(
        first,
        last_n=last.n,
        until_t=last.t,
        what=ranks_did(ranks, first.what),
        reason=reasons.pop() if len(reasons) == 1 else "",
        ranks=ranks,
        count=len(built),
    )
    return Built(row, [key for one in built for key in one.holds], failed=built[0].failed)
