"""The timeline: a history as rows, what happened and what was decided on it, with reasons, causes and gaps.

Stretches of reports are folded into one row ("412 reports"), and so are ranks that did the same one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from runfold.events.base import Cause, Document
from runfold.events.conclusions import ControllerStarted, JobTaken
from runfold.events.entry import AnyInput, Entry
from runfold.events.facts import Fact, RankExited, RankFailed, RankReturned, RankStarted, Reported
from runfold.events.failures import ErrorInfo, FailureKind
from runfold.events.requests import Join
from runfold.events.transitions import AnyTransition, FailureDecided, FirstCauseRevised, StateChanged, StateName
from runfold.replay.history import History
from runfold.replay.words import input_words, kind_of, metric_words, rank_words, transition_words

_SAID_BY_TRANSITION = (Join, JobTaken, ControllerStarted)
"""Inputs without a row: the transition that answers them in the same entry says the same."""


class Pointer(Document, frozen=True, kw_only=True):
    """What brought something about: an input or a transition of an entry, and its kind."""

    n: int
    kind: str
    input: int | None = None
    transition: int | None = None


class RowError(Document, frozen=True, kw_only=True):
    """An error as told: by or of which rank, in the user's frames."""

    rank: int | None
    node: str
    type: str
    message: str
    kind: FailureKind
    where: str | None = None
    traceback: str | None = None
    blob: str | None = None


class Row(Document, frozen=True, kw_only=True):
    """One row. `last_n` and `until_t` differ from `n` and `t` when it stands for several entries.

    `gap_s`: since the row before. `kind`: the wire name of the input or transition, `reports` for a stretch of them.
    `before` and `after`: for a change of state only. `count`: how many inputs it stands for.
    `collateral`: a failure of an attempt whose first cause is another one.
    """

    n: int
    last_n: int
    t: float
    until_t: float
    at: str
    gap_s: float
    kind: str
    what: str
    reason: str = ""
    before: StateName | None = None
    after: StateName | None = None
    cause: Pointer | None = None
    error: RowError | None = None
    output: str = ""
    attempt: int | None = None
    ranks: tuple[int, ...] = ()
    count: int = 1
    collateral: bool = False


class Timeline(Document, frozen=True, kw_only=True):
    """All rows of a run. `skipped` messages were no entries; `trouble` says what is damaged, if anything is."""

    run: str
    entries: int
    rows: tuple[Row, ...]
    skipped: int = 0
    trouble: str = ""


def timeline(history: History) -> Timeline:
    """Return the rows of a history, in the order of the log."""
    return Timeline(
        run=history.run,
        entries=len(history.links),
        rows=tuple(_with_gaps(_folded(_rows(history.entries)))),
        skipped=len(history.strays),
        trouble=history.trouble,
    )


def _rows(entries: Sequence[Entry]) -> Iterator[Row | _Stretch]:
    stretch: _Stretch | None = None
    told: set[tuple[int, int]] = set()
    first = _first_causes(entries)
    for entry in entries:
        for item in entry.inputs:
            if isinstance(item, Reported):
                stretch = stretch or _Stretch(entry)
                stretch.add(entry, item)
                continue
            row = _input_row(entry, item, told, first)
            if row is not None:
                if stretch is not None:
                    yield stretch
                    stretch = None
                yield row
        if entry.transitions and stretch is not None:
            yield stretch
            stretch = None
        for transition in entry.transitions:
            yield _transition_row(entry, transition, entries, told)
    if stretch is not None:
        yield stretch


class _Stretch:
    """Reports with nothing else between them."""

    def __init__(self, entry: Entry) -> None:
        self.first = self.last = entry
        self.count = 0
        self.ranks: set[int] = set()
        self.steps: list[int] = []
        self.newest: Reported | None = None

    def add(self, entry: Entry, report: Reported) -> None:
        self.last = entry
        self.count += 1
        self.ranks.add(report.rank)
        if report.rank == 0:
            self.newest = report if report.metrics or self.newest is None else self.newest
        step = report.index if report.step is None else report.step
        self.steps = [min(step, *self.steps), max(step, *self.steps)] if self.steps else [step, step]

    def row(self) -> Row:
        low, high = self.steps
        steps = f"step {low}" if low == high else f"steps {low}-{high}"
        metrics = f"; {metric_words(self.newest.metrics)}" if self.newest and self.newest.metrics else ""
        return Row(
            n=self.first.n,
            last_n=self.last.n,
            t=self.first.t,
            until_t=self.last.t,
            at=self.first.at,
            gap_s=0.0,
            kind="reports",
            what="1 report" if self.count == 1 else f"{self.count} reports",
            reason=f"{rank_words(sorted(self.ranks))}, {steps}{metrics}",
            ranks=tuple(sorted(self.ranks)),
            count=self.count,
        )


def _first_causes(entries: Sequence[Entry]) -> dict[int, int | None]:
    """Return the rank that failed first in each attempt that failed; None for a failure of no rank."""
    return {
        item.failure.attempt: item.failure.rank
        for entry in entries
        for item in entry.transitions
        if isinstance(item, FailureDecided | FirstCauseRevised)
    }


def _input_row(entry: Entry, item: AnyInput, told: set[tuple[int, int]], first: dict[int, int | None]) -> Row | None:
    if isinstance(item, _SAID_BY_TRANSITION):
        return None
    what, more = input_words(item)
    rank: int | None = getattr(item, "rank", None)
    attempt = item.attempt if isinstance(item, Fact) else None
    error: RowError | None = None
    output, collateral = "", False
    if isinstance(item, RankFailed):
        collateral = first.get(item.attempt, item.rank) != item.rank
        error = row_error(item.error, item.rank, item.source)
        told.add((item.attempt, item.rank))
    elif isinstance(item, RankExited) and not (item.asked or item.returned or (item.attempt, item.rank) in told):
        output = item.last_lines
    return msgspec.structs.replace(
        _row(entry, item, what, more),
        attempt=attempt,
        ranks=() if rank is None else (rank,),
        error=error,
        output=output,
        collateral=collateral,
    )


def _transition_row(entry: Entry, item: AnyTransition, entries: Sequence[Entry], told: set[tuple[int, int]]) -> Row:
    error: RowError | None = None
    if isinstance(item, FailureDecided | FirstCauseRevised):
        failure = item.failure
        # The traceback stands in the row of the rank that told of it; once is enough.
        if failure.rank is None or (failure.attempt, failure.rank) not in told:
            error = row_error(failure.error, failure.rank, failure.node)
    before, after = (item.from_state, item.to_state) if isinstance(item, StateChanged) else (None, None)
    return msgspec.structs.replace(
        _row(entry, item, transition_words(item), item.reason),
        before=before,
        after=after,
        cause=_pointer(item.cause, entry, entries),
        error=error,
        attempt=getattr(item, "attempt", None),
    )


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


def row_error(error: ErrorInfo, rank: int | None, node: str) -> RowError:
    """Return an error as rows show it."""
    return RowError(
        rank=rank,
        node=node,
        type=error.type,
        message=error.message,
        kind=error.kind,
        where=error.where,
        traceback=error.traceback,
        blob=error.blob,
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


def _folded(rows: Iterator[Row | _Stretch]) -> Iterator[Row]:
    """Fold ranks that did the same one after another into one row."""
    alike: list[Row] = []
    for item in rows:
        row = item.row() if isinstance(item, _Stretch) else item
        if alike and not _same(alike[0], row):
            yield _joined(alike)
            alike = []
        alike.append(row)
    if alike:
        yield _joined(alike)


_FOLDED_KINDS = frozenset(kind.__struct_config__.tag for kind in (RankStarted, RankReturned, RankExited))


def _same(first: Row, row: Row) -> bool:
    if row.kind not in _FOLDED_KINDS or row.output or first.output:
        return False
    return (first.kind, first.attempt, _verb(first)) == (row.kind, row.attempt, _verb(row))


def _verb(row: Row) -> str:
    """What a rank did, without saying which."""
    return row.what.partition(" ")[2].partition(" ")[2]


def _joined(rows: Sequence[Row]) -> Row:
    first, last = rows[0], rows[-1]
    if len(rows) == 1:
        return first
    ranks = tuple(sorted({rank for row in rows for rank in row.ranks}))
    reasons = {row.reason for row in rows}
    return msgspec.structs.replace(
        first,
        last_n=last.n,
        until_t=last.t,
        what=f"{rank_words(ranks)} {_verb(first)}",
        reason=reasons.pop() if len(reasons) == 1 else "",
        ranks=ranks,
        count=len(rows),
    )


def _with_gaps(rows: Iterator[Row]) -> Iterator[Row]:
    until = 0.0
    for row in rows:
        yield msgspec.structs.replace(row, gap_s=round(row.t - until, 6)) if row.t > until else row
        until = row.until_t
