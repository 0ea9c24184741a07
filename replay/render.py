"""A run's replay as lines for people: the header, and the rows of its timeline below it.

Every text is made safe here, and nowhere else is one printed. Programs read the same documents as JSON:
`runfold.replay.escape.to_json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from runfold.controller.words import entry_words
from runfold.events.base import Value
from runfold.events.counts import counted
from runfold.replay.escape import safe, safe_lines
from runfold.replay.look import FIELD_INDENT, KEPT, PLAIN, Look, field, seconds, state_paint, wrapped

if TYPE_CHECKING:
    from runfold.replay.goodput import Goodput
    from runfold.replay.rows import Pointer, Row, RowError, Timeline
    from runfold.replay.story import BudgetLeft, Setback, Story

__all__ = ["Look", "goodput_words", "headline", "render_row", "render_story", "render_timeline", "seconds"]

SETBACKS_SHOWN_MAX_COUNT: Final = 4
INCIDENTS_SHOWN_MAX_COUNT: Final = 6
BADPUT_SHOWN_MAX_COUNT: Final = 4
_SHOWN_S: Final = 0.05
"""Shorter parts would be shown as nothing."""

TRACEBACK_LINES_MAX_COUNT: Final = 30
OUTPUT_LINES_MAX_COUNT: Final = 10
_BLOCK_INDENT: Final = 11
"""Columns before a traceback, which needs the room."""


def render_story(story: Story, look: Look = PLAIN) -> Iterator[str]:
    """Yield the header of a run's replay: outcome, goodput, first causes, decisions, what is left of each budget."""
    state = look.paint(story.state.upper(), "bold", state_paint(story.state))
    counts = [counted(story.attempts, "attempt"), counted(story.num_workers, "rank"), counted(story.reports, "report")]
    if story.checkpoints:
        counts.append(f"{counted(story.checkpoints, 'checkpoint')}, the last {safe(story.checkpoint or '')}")
    when = "after" if story.ended else "so far"
    text = f"{state} {when} {seconds(story.duration_s)}  ({', '.join(counts)})"
    yield from wrapped("", f"{look.paint(safe(story.run), 'bold')}  {text}", look, FIELD_INDENT)
    yield from field(
        "of", f"{safe(entry_words(story.entrypoint, story.name))}, accepted {safe(story.accepted_at)}", look
    )
    yield from field("because", safe(story.reason), look)
    yield from field("goodput", goodput_words(story.goodput), look)
    yield from _setbacks(story.setbacks, look)
    yield from _incidents(story, look)
    budgets = [_budget(one) for one in story.budgets if one.spent or (one.left is not None and one.limit > 0)]
    if budgets:
        yield from field("budgets", "; ".join(budgets), look)
    for warning in story.warnings:
        yield from field("warning", safe(warning), look, "yellow")
    if story.skipped:
        skipped = f"{counted(story.skipped, 'message')}, no entries of this run; audit names them"
        yield from field("skipped", skipped, look, "yellow")
    if story.trouble:
        yield from field("damaged", safe(story.trouble), look, "red")


def goodput_words(found: Goodput) -> str:
    """Return how much was productive, and what the largest other parts went into."""
    if found.goodput is None:
        return "no time has passed"
    bad = [(name, value) for name, value in found.badput_s.items() if value >= _SHOWN_S]
    parts = [f"{seconds(value)} {name.replace('_', ' ')}" for name, value in bad[:BADPUT_SHOWN_MAX_COUNT]]
    more = f", {len(bad) - len(parts)} more" if len(bad) > len(parts) else ""
    rest = f"; {', '.join(parts)}{more}" if parts else ""
    return f"{found.goodput:.1%}: {seconds(found.productive_s)} of {seconds(found.clock_s)} productive{rest}"


def _setbacks(setbacks: tuple[Setback, ...], look: Look) -> Iterator[str]:
    """Yield the failures: all, or the first and the last when there are many."""
    edge = SETBACKS_SHOWN_MAX_COUNT // 2
    left_out = setbacks[edge:-edge] if len(setbacks) > SETBACKS_SHOWN_MAX_COUNT else ()
    for place, setback in enumerate(setbacks):
        if place == edge and left_out:
            first = setbacks[0].cause
            alike = sum((one.cause.type, one.cause.kind) == (first.type, first.kind) for one in left_out)
            yield from field("", f"… {counted(len(left_out), 'failure')} more, {alike} of them like the first", look)
        if edge <= place < edge + len(left_out):
            continue
        yield from _setback(setback, look)


def _setback(setback: Setback, look: Look) -> Iterator[str]:
    cause = setback.cause
    who = f"rank {cause.rank} on {cause.node}" if cause.rank is not None else cause.node or "the group"
    revised = ", known only later" if setback.revised else ""
    others = f"; {counted(setback.others, 'other')} failed with it" if setback.others else ""
    failed = f"attempt {setback.attempt}: {who}: {headline(cause)} ({cause.kind}{revised}){others}"
    yield from field("failed", safe(failed), look, "red")
    if cause.where:
        yield from field("", safe(f"at {cause.where}"), look)
    yield from field("decided", safe(f"{setback.decision} at entry {setback.n}: {setback.reason}"), look, "yellow")
    if setback.budget is not None and setback.limit >= 0:
        left = f"{setback.budget} budget: {setback.spent} of {setback.limit} spent, {setback.left} left"
        yield from field("", left, look, "yellow")


def _incidents(story: Story, look: Look) -> Iterator[str]:
    for incident in story.incidents[:INCIDENTS_SHOWN_MAX_COUNT]:
        why = f": {incident.reason}" if incident.reason else ""
        yield from field("noticed", safe(f"entry {incident.n} at {incident.t:.3f} s: {incident.what}{why}"), look)
    more = max(0, len(story.incidents) - INCIDENTS_SHOWN_MAX_COUNT) + story.more_incidents
    if more:
        yield from field("", f"… {more} more in the timeline", look)


def _budget(budget: BudgetLeft) -> str:
    if budget.left is None:
        return f"{budget.name} {budget.spent} (unlimited)"
    return f"{budget.name} {budget.spent} of {budget.limit}, {budget.left} left"


def headline(error: RowError) -> str:
    """Return an error on one line."""
    line = (f"{error.type}: {error.message}" if error.message else error.type).partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"


# --- the timeline


class _Columns(Value, frozen=True, kw_only=True):
    """How wide the columns before what happened are: number, entry, time, gap."""

    number: int
    entry: int
    time: int
    gap: int

    @property
    def indent(self) -> int:
        return self.number + self.entry + self.time + self.gap + 8

    def front(self, number: str, entry: str, time: str, gap: str) -> str:
        return f"{number:>{self.number}}  {entry:>{self.entry}}  {time:>{self.time}}  {gap:>{self.gap}}  "


def _columns(rows: tuple[Row, ...]) -> _Columns:
    return _Columns(
        number=max((len(_number(row)) for row in rows), default=1),
        entry=max(5, *(len(_entry(row)) for row in rows), 0),
        time=max(7, *(len(f"{row.t:.3f}") for row in rows), 0),
        gap=max(6, *(len(_gap(row)) for row in rows), 0),
    )


def _number(row: Row) -> str:
    return f"{row.number}" if row.number == row.last_number else f"{row.number}-{row.last_number}"


def _entry(row: Row) -> str:
    return f"{row.n}" if row.n == row.last_n else f"{row.n}-{row.last_n}"


def _gap(row: Row) -> str:
    return f"+{row.gap_s:.3f}" if row.gap_s else ""


_GROWING: Final = _Columns(number=4, entry=7, time=9, gap=9)


def render_row(row: Row, before: Row | None, look: Look = PLAIN) -> Iterator[str]:
    """Yield a row of a timeline that grows, after the one before."""
    yield from _row(row, before, _GROWING, look)


def render_timeline(timeline: Timeline, look: Look = PLAIN) -> Iterator[str]:
    """Yield the rows of a timeline under a head line. A cause is named by the number of its row."""
    columns = _columns(timeline.rows)
    yield look.paint(columns.front("#", "entry", "time", "gap") + "what happened, and why", "dim")
    before: Row | None = None
    for row in timeline.rows:
        yield from _row(row, before, columns, look)
        before = row
    if timeline.trouble:
        yield look.paint(f"{'':>{columns.indent}}the log is damaged here: {safe(timeline.trouble)}", "red")


def _row(row: Row, before: Row | None, columns: _Columns, look: Look) -> Iterator[str]:
    again = before is not None and before.last_n == row.n == row.last_n
    blank = again and look.width is not None
    front = columns.front(
        _number(row),
        "" if blank else _entry(row),
        "" if blank else f"{row.t:.3f}",
        "" if blank else _gap(row),
    )
    what, reason = safe(row.what), safe(row.reason)
    if again and before is not None and before.reason == row.reason:
        reason = ""
    if what and reason.startswith(what):
        # A reason that begins with what was done says it all.
        reason = reason[len(what) :]
    elif reason:
        reason = f": {reason}"
    text = f"{_mark(row)}{_painted(row, what, look)}{reason}"
    if row.cause is not None:
        text += "  " + look.paint(f"← {_pointed(row.cause, row.n)}".replace(" ", KEPT), "dim")
    yield from wrapped(front, text, look, columns.indent)
    yield from _below(row, look)


def _mark(row: Row) -> str:
    """Return what stands before a failure that followed from another one, or that was heard of late."""
    late = "" if row.late_s is None else f"heard {row.late_s:.3f} s after the decision: "
    return f"  after it: {late}" if row.collateral else late


def _painted(row: Row, what: str, look: Look) -> str:
    if row.path:
        return look.paint(" → ".join(state.upper() for state in row.path), "bold", state_paint(row.path[-1]))
    if row.error is not None:
        return look.paint(what, "red")
    if row.kind in ("quiet", "left_out"):
        return look.paint(what, "dim")
    return look.paint(what, "yellow") if row.kind == "failure_decided" else what


def _below(row: Row, look: Look) -> Iterator[str]:
    """Yield what stands below a row: a traceback in the user's frames, the last lines of output."""
    if row.error is not None and (look.full or not row.collateral):
        if row.error.traceback:
            yield from _block(row.error.traceback, TRACEBACK_LINES_MAX_COUNT, look)
        elif row.error.where:
            yield from _block(f"at {row.error.where}", 1, look)
        if row.error.blob:
            yield from _block(f"the whole text is the blob {row.error.blob}", 1, look)
    if row.output:
        yield from _block(row.output, OUTPUT_LINES_MAX_COUNT, look)


def _block(text: str, lines_max: int, look: Look) -> Iterator[str]:
    lines = safe_lines(text.rstrip("\n"))
    left_out = len(lines) - lines_max
    if left_out > 0 and not look.full:
        lines = [f"… {counted(left_out, 'line')} more, shown with --full", *lines[-lines_max:]]
    for line in lines:
        yield f"{'':>{_BLOCK_INDENT}}{look.paint(f'| {line}', 'dim')}"


def _pointed(cause: Pointer, n: int) -> str:
    if cause.row is not None:
        return str(cause.row)
    return cause.kind if cause.n == n else f"{cause.kind} of entry {cause.n}"
