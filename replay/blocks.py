"""Failures in their place: what followed from an attempt's first cause stands below it, also what came late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from runfold.events.base import Cause
from runfold.events.entry import Entry
from runfold.events.failures import masked
from runfold.events.transitions import FailureDecided, FirstCauseRevised
from runfold.replay.rows import Row
from runfold.replay.words import ranks_did

Key = tuple[int, bool, int]
"""An input (False) or transition (True) of an entry, by its place there."""


class Built:
    """A row being made: the inputs and transitions it tells of, and whether it tells of a failure."""

    __slots__ = ("failed", "holds", "row")

    def __init__(self, row: Row, holds: list[Key], *, failed: bool = False) -> None:
        self.row = row
        self.holds = holds
        self.failed = failed


def key_of(cause: Cause, n: int) -> Key:
    """Return what a cause of a transition in entry `n` points to."""
    entry = n if cause.entry is None else cause.entry
    if cause.input is not None:
        return (entry, False, cause.input)
    return (entry, True, cause.transition or 0)


class _Decided:
    """The failure that counts as an attempt's first, and the entry and moment at which its end was decided."""

    def __init__(self, first: Key, entry: Entry) -> None:
        self.first = first
        self.n = entry.n
        self.t = entry.t


def arranged(rows: Iterable[Built], entries: Sequence[Entry]) -> list[Built]:
    """Return rows with every failure of an attempt below its first cause."""
    decided = _decisions(entries)
    passed_over, replaced = _passed_over(entries), _replaced(entries)
    listed = list(rows)
    if not decided:
        return listed
    blocks: dict[int, list[int]] = {}
    heads: dict[int, int] = {}
    for place, one in enumerate(listed):
        attempt = one.row.attempt
        of_attempt = decided.get(attempt) if attempt is not None else None
        if of_attempt is None or attempt is None:
            continue
        if of_attempt.first in one.holds:
            heads[attempt] = place
        elif one.failed and not passed_over.intersection(one.holds) and not _before(one, replaced.get(attempt)):
            blocks.setdefault(attempt, []).append(place)
    return _moved(listed, decided, blocks, heads)


def _decisions(entries: Sequence[Entry]) -> dict[int, _Decided]:
    found: dict[int, _Decided] = {}
    for entry in entries:
        for item in entry.transitions:
            if isinstance(item, FailureDecided) and item.decision in ("retry", "raise"):
                found[item.failure.attempt] = _Decided(key_of(item.failure.cause, entry.n), entry)
            elif isinstance(item, FirstCauseRevised) and item.attempt in found:
                found[item.attempt].first = key_of(item.failure.cause, entry.n)
    return found


def _replaced(entries: Sequence[Entry]) -> dict[int, int]:
    """Return, by attempt, the last entry that dealt with failures by replacing replica groups."""
    return {
        item.failure.attempt: entry.n
        for entry in entries
        for item in entry.transitions
        if isinstance(item, FailureDecided) and item.decision == "replace"
    }


def _before(one: Built, n: int | None) -> bool:
    return n is not None and any(entry <= n for entry, _, _ in one.holds)


def _passed_over(entries: Sequence[Entry]) -> set[Key]:
    """Return the failures that were dealt with by doing nothing."""
    return {
        key_of(item.failure.cause, entry.n)
        for entry in entries
        for item in entry.transitions
        if isinstance(item, FailureDecided) and item.decision == "noop"
    }


def _moved(
    rows: list[Built], decided: dict[int, _Decided], blocks: dict[int, list[int]], heads: dict[int, int]
) -> list[Built]:
    taken: set[int] = set()
    put: dict[int, list[Built]] = {}
    for attempt, end in decided.items():
        below, head = blocks.get(attempt, []), heads.get(attempt)
        collateral = _alike([_marked(rows[place], end, collateral=True) for place in below])
        if head is None:
            # The first cause has no row of its own: what followed stays where it is, the decision says the rest.
            first, place = [], min(below, default=None)
        else:
            first, place = [_marked(rows[head], end, collateral=False)], min(head, *below) if below else head
        if place is not None:
            put[place] = [*first, *collateral]
            taken.update(below, () if head is None else (head,))
    arranged_rows: list[Built] = []
    for place, one in enumerate(rows):
        arranged_rows.extend(put.get(place, ()))
        if place not in taken:
            arranged_rows.append(one)
    return arranged_rows


def _marked(one: Built, end: _Decided, *, collateral: bool) -> Built:
    late_s = round(one.row.t - end.t, 6) if one.row.n > end.n else None
    row = msgspec.structs.replace(one.row, collateral=collateral, late_s=late_s)
    return Built(row, one.holds, failed=one.failed)


def _alike(rows: Sequence[Built]) -> list[Built]:
    """Join failures of many ranks that say the same but for numbers and addresses."""
    groups: dict[tuple[str, str, bool], list[Built]] = {}
    for one in rows:
        groups.setdefault((one.row.kind, _signature(one.row), one.row.late_s is not None), []).append(one)
    return [_joined(group) for group in groups.values()]


def _signature(row: Row) -> str:
    error = row.error
    told = row.what if error is None else f"{error.kind} {error.type} {error.message}"
    return masked(told)


def _joined(group: Sequence[Built]) -> Built:
    first, last = group[0].row, group[-1].row
    if len(group) == 1:
        return group[0]
    row = msgspec.structs.replace(first, last_n=last.n, until_t=last.until_t)
    if ranks := tuple(sorted({rank for one in group for rank in one.row.ranks})):
        row = msgspec.structs.replace(row, what=ranks_did(ranks, first.what), ranks=ranks, count=len(group))
    return Built(row, [key for one in group for key in one.holds], failed=True)
