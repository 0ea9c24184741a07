"""The timeline on one screen: quiet rows, progress and changes of state folded, and attempts that went alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from runfold.events.counts import counted
from runfold.events.failures import masked
from runfold.replay.rows import Row, Timeline
from runfold.replay.stretch import progress_words, reports_words

SCREEN_ROWS_MAX: Final = 60
ATTEMPTS_WHOLE_MAX: Final = 6
"""Attempts that are all shown; of more, the first and the last two are."""

_EDGE_COUNT: Final = 2
_TOP_ROWS_COUNT: Final = 20

_QUIET: Final = frozenset(
    {
        "source_joined",
        "placed",
        "runner_ready",
        "group_laid_out",
        "rank_started",
        "rank_returned",
        "rank_exited",
        "released",
        "capacity_changed",
        "controller_changed",
    }
)
_PROGRESS: Final = frozenset(
    {"reports", "checkpoint_sealed", "checkpoint_committed", "task_ordered", "task_ended", "task_closed"}
)
_CHANGE: Final = frozenset({"state_changed", "attempt_started", "group_laid_out"})


def on_screen(whole: Timeline, rows_max: int = SCREEN_ROWS_MAX) -> Timeline:
    """Return a timeline as it fits on a screen: nothing is left out without a row that says what."""
    rows = list(_runs(whole.rows))
    rows = _alike_attempts(rows)
    if len(rows) > rows_max:
        bottom = rows_max - _TOP_ROWS_COUNT - 1
        middle = rows[_TOP_ROWS_COUNT : len(rows) - bottom]
        rows = [*rows[:_TOP_ROWS_COUNT], _left_out(middle), *rows[len(rows) - bottom :]]
    # A row has the gap of the first one that it stands for, which is to the row before in the whole log.
    return msgspec.structs.replace(whole, rows=tuple(rows))


# --- what stands together


def _runs(rows: Iterable[Row]) -> Iterator[Row]:
    """Fold rows that follow one another and belong together."""
    held: list[Row] = []
    for row in rows:
        if held and not _together(held[-1], row):
            yield _folded(held)
            held = []
        held.append(row)
    if held:
        yield _folded(held)


def _class_of(row: Row) -> str:
    loud = row.error is not None or row.output or row.collateral or row.late_s is not None
    if loud or (row.kind == "task_ended" and " done" not in row.what) or row.kind == "task_closed":
        return ""
    if row.kind == "controller_changed":
        return "quiet" if row.n == 0 else ""
    if row.kind in _PROGRESS:
        return "progress"
    if row.kind == "queued":
        return "queued"
    return "quiet" if row.kind in _QUIET else ""


def _together(before: Row, row: Row) -> bool:
    if before.attempt is not None and row.attempt is not None and before.attempt != row.attempt:
        # One entry may end an attempt and begin the next; that is one change.
        return _changes(before, row)
    if _changes(before, row):
        return True
    kind = _class_of(row)
    return bool(kind) and kind == _class_of(before)


def _changes(before: Row, row: Row) -> bool:
    return before.n == row.n and before.kind in _CHANGE and row.kind in _CHANGE


def _folded(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    changes = [row for row in rows if row.path]
    if changes:
        return _change(rows, changes)
    match _class_of(rows[0]):
        case "progress":
            return _progress(rows)
        case "queued":
            return _spanning(rows, reason=rows[-1].reason, count=len(rows))
        case _:
            return _quiet(rows)


def _spanning(rows: Sequence[Row], **fields: object) -> Row:
    last = rows[-1]
    span = {
        "last_n": max(row.last_n for row in rows),
        "until_t": max(row.until_t for row in rows),
        "last_number": last.last_number,
    }
    return msgspec.structs.replace(rows[0], **{**span, **fields})


def _change(rows: Sequence[Row], changes: Sequence[Row]) -> Row:
    path = [*changes[0].path]
    for row in changes[1:]:
        path.extend(row.path[1:])
    begun = next((row for row in rows if row.kind == "attempt_started"), changes[0])
    return _spanning(
        rows,
        kind="state_changed",
        what="",
        reason=begun.reason,
        before=path[0],
        after=path[-1],
        path=tuple(path),
        cause=changes[0].cause,
        attempt=rows[-1].attempt,
    )


def _quiet(rows: Sequence[Row]) -> Row:
    said = dict.fromkeys(row.what for row in rows)
    causes = {row.cause for row in rows}
    return _spanning(
        rows,
        kind="quiet",
        what="; ".join(said),
        reason="",
        cause=causes.pop() if len(causes) == 1 else None,
        count=len(rows),
        ranks=tuple(sorted({rank for row in rows for rank in row.ranks})),
    )


def _progress(rows: Sequence[Row]) -> Row:
    reports = [row for row in rows if row.kind == "reports"]
    committed = [row for row in rows if row.kind == "checkpoint_committed"]
    count = sum(row.count for row in reports)
    parts = [reports_words(count)] if count else []
    if committed:
        parts.append(f"{committed[-1].what}{f' and {len(committed) - 1} before it' if len(committed) > 1 else ''}")
    steps = [step for row in reports for step in row.steps or ()]
    ranks = tuple(sorted({rank for row in reports for rank in row.ranks}))
    metrics = next((row.metrics for row in reversed(reports) if row.metrics), None)
    span = (min(steps), max(steps)) if steps else None
    return _spanning(
        rows,
        kind="reports" if reports else rows[0].kind,
        what=", ".join(parts) or rows[-1].what,
        reason=progress_words(ranks, span, metrics) if span else "",
        cause=None,
        count=count or len(rows),
        ranks=ranks,
        steps=span,
        metrics=metrics,
    )


# --- many attempts


def _alike_attempts(rows: list[Row]) -> list[Row]:
    """Fold attempts that failed alike, when there are many: the first and the last two stay whole."""
    attempts = list(dict.fromkeys(row.attempt for row in rows if row.attempt is not None))
    if len(attempts) <= ATTEMPTS_WHOLE_MAX:
        return rows
    middle = set(attempts[_EDGE_COUNT:-_EDGE_COUNT])
    folded = _folded_attempts([row for row in rows if row.attempt in middle])
    # An end of one attempt may stand in the midst of the next.
    return sorted([*(row for row in rows if row.attempt not in middle), *folded], key=lambda row: row.number)


def _folded_attempts(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each stretch of attempts that failed alike."""
    by_attempt: dict[int, list[Row]] = {}
    for row in rows:
        by_attempt.setdefault(row.attempt or 0, []).append(row)
    found: list[Row] = []
    group: list[list[Row]] = []
    for own in by_attempt.values():
        if group and _ending(group[0]) != _ending(own):
            found.extend(_attempts_row(group))
            group = []
        group.append(own)
    found.extend(_attempts_row(group))
    return found


def _ending(rows: Sequence[Row]) -> str:
    """Return how an attempt ended, numbers masked."""
    decided = [row for row in rows if row.kind == "failure_decided"]
    return masked(decided[-1].reason) if decided else ""


def _attempts_row(group: Sequence[Sequence[Row]]) -> Iterator[Row]:
    if not group:
        return
    rows = [row for attempt in group for row in attempt]
    if len(group) == 1:
        yield from rows
        return
    first, last = rows[0].attempt, rows[-1].attempt
    reports = sum(row.count for row in rows if row.kind == "reports")
    decided = [row for row in rows if row.kind == "failure_decided"]
    how = f" that failed alike; the first of them: {decided[0].reason}" if decided else ""
    yield _spanning(
        rows,
        kind="attempts",
        what=f"attempts {first}-{last}",
        reason=f"{counted(len(group), 'attempt')} with {reports_words(reports)}{how}",
        before=None,
        after=None,
        path=(),
        cause=None,
        error=None,
        collateral=False,
        late_s=None,
        count=len(group),
        ranks=(),
    )


def _left_out(rows: Sequence[Row]) -> Row:
    return _spanning(
        rows,
        kind="left_out",
        what=f"… {len(rows)} rows, shown with --full",
        reason="",
        before=None,
        after=None,
        path=(),
        cause=None,
        error=None,
        output="",
        collateral=False,
        late_s=None,
        count=len(rows),
        ranks=(),
    )
