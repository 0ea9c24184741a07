"""Documents of replay as lines for people. Every text is made safe here, and nowhere else is one printed.

On a terminal lines are wrapped to its width and coloured; piped, a row stays on one line and nothing is coloured.
Programs read the same documents as JSON: `runfold.replay.escape.to_json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from runfold.events.base import Value
from runfold.replay.escape import safe, safe_lines
from runfold.replay.story import BudgetLeft, Setback, Story
from runfold.replay.timeline import Pointer, Row, RowError, Timeline

Paint = Literal["bold", "dim", "red", "green", "yellow", "cyan"]
_CODES: Final[dict[Paint, str]] = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

TRACEBACK_LINES_MAX_COUNT: Final = 30
OUTPUT_LINES_MAX_COUNT: Final = 10
_WIDTH_MIN_COUNT: Final = 60
_INDENT: Final = 33
"""Columns before what happened: entry, time, gap."""

_BLOCK_INDENT: Final = 11
"""Columns before a traceback, which needs the room."""

_KEPT: Final = "\u00a0"
"""A blank at which no line is cut."""


class Look(Value, frozen=True, kw_only=True):
    """How lines are made: `width` columns (None: never wrapped, as for a pipe), colours, whole tracebacks."""

    width: int | None = None
    color: bool = False
    full: bool = False

    def paint(self, text: str, *paints: Paint) -> str:
        """Return text in these colours; its own control characters must be gone already."""
        if not self.color or not text:
            return text
        return f"\x1b[{';'.join(_CODES[paint] for paint in paints)}m{text}\x1b[0m"


PLAIN: Final = Look()


def render_story(story: Story, look: Look = PLAIN) -> Iterator[str]:
    """Yield the header of a run's replay: outcome, first causes, decisions, what is left of each budget."""
    state = look.paint(story.state.upper(), "bold", _state_paint(story.state))
    counts = (_count(story.attempts, "attempt"), _count(story.num_workers, "rank"), _count(story.reports, "report"))
    when = "after" if story.ended else "so far"
    text = f"{state} {when} {seconds(story.duration_s)}  ({', '.join(counts)})"
    yield from _wrapped("", f"{look.paint(safe(story.run), 'bold')}  {text}", look, 10)
    yield from _field("of", f"{safe(story.entrypoint)}, accepted {safe(story.accepted_at)}", look)
    yield from _field("because", safe(story.reason), look)
    for setback in story.setbacks:
        yield from _setback(setback, look)
    yield from _field("budgets", "; ".join(map(_budget, story.budgets)), look)
    for warning in story.warnings:
        yield from _field("warning", safe(warning), look, "yellow")
    if story.skipped:
        skipped = f"{_count(story.skipped, 'message')}, no entries of this run; audit names them"
        yield from _field("skipped", skipped, look, "yellow")
    if story.trouble:
        yield from _field("damaged", safe(story.trouble), look, "red")


def _setback(setback: Setback, look: Look) -> Iterator[str]:
    cause = setback.cause
    who = f"rank {cause.rank} on {cause.node}" if cause.rank is not None else cause.node or "the group"
    revised = ", known only later" if setback.revised else ""
    failed = f"attempt {setback.attempt}: {who}: {headline(cause)} ({cause.kind}{revised})"
    yield from _field("failed", safe(failed), look, "red")
    if cause.where:
        yield from _field("", safe(f"at {cause.where}"), look)
    yield from _field("decided", safe(f"{setback.decision} at entry {setback.n}: {setback.reason}"), look, "yellow")


def render_timeline(timeline: Timeline, look: Look = PLAIN) -> Iterator[str]:
    """Yield the rows of a timeline under a head line."""
    yield look.paint(f"{'entry':>9}  {'time':>9}  {'gap':>9}  what happened, and why", "dim")
    before: Row | None = None
    for row in timeline.rows:
        yield from _row(row, before, look)
        before = row
    if timeline.trouble:
        yield look.paint(f"{'':>{_INDENT}}the log is damaged here: {safe(timeline.trouble)}", "red")


def _row(row: Row, before: Row | None, look: Look) -> Iterator[str]:
    again = before is not None and before.last_n == row.n == row.last_n
    front = " " * _INDENT
    if not again or look.width is None:
        entry = f"{row.n}" if row.n == row.last_n else f"{row.n}-{row.last_n}"
        gap = f"+{row.gap_s:.3f}" if row.gap_s else ""
        front = f"{entry:>9}  {row.t:>9.3f}  {gap:>9}  "
    what, reason = safe(row.what), safe(row.reason)
    if again and before is not None and before.reason == row.reason:
        reason = ""
    if what and reason.startswith(what):
        # A reason that begins with what was done says it all.
        reason = reason[len(what) :]
    elif reason:
        reason = f": {reason}"
    text = f"{'  after it: ' if row.collateral else ''}{_painted(row, what, look)}{reason}"
    if row.cause is not None:
        text += "  " + look.paint(f"← {_pointed(row.cause, row.n)}".replace(" ", _KEPT), "dim")
    yield from _wrapped(front, text, look)
    yield from _below(row, look)


def _painted(row: Row, what: str, look: Look) -> str:
    if row.before is not None and row.after is not None:
        return look.paint(f"{row.before.upper()} → {row.after.upper()}", "bold", _state_paint(row.after))
    if row.error is not None:
        return look.paint(what, "red")
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
        lines = [f"… {_count(left_out, 'line')} more, shown with --full", *lines[-lines_max:]]
    for line in lines:
        yield f"{'':>{_BLOCK_INDENT}}{look.paint(f'| {line}', 'dim')}"


def _pointed(cause: Pointer, n: int) -> str:
    return cause.kind if cause.n == n else f"{cause.kind} of entry {cause.n}"


def _state_paint(state: str) -> Paint:
    if state in ("finished", "running"):
        return "green"
    return "red" if state == "errored" else "yellow" if state in ("restarting", "rescheduling", "aborted") else "cyan"


def _budget(budget: BudgetLeft) -> str:
    if budget.left is None:
        return f"{budget.name} {budget.spent}, unlimited"
    return f"{budget.name} {budget.spent} of {budget.limit}, {budget.left} left"


def headline(error: RowError) -> str:
    """Return an error on one line."""
    line = f"{error.type}: {error.message}".partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"


def seconds(duration_s: float) -> str:
    """Return a duration as people say it: `9.2 s`, `3 m 20 s`, `2 h 05 m`."""
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, rest = divmod(round(duration_s), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} m" if hours else f"{minutes} m {rest:02d} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _field(name: str, text: str, look: Look, *paints: Paint) -> Iterator[str]:
    yield from _wrapped(f"{look.paint(f'{name:<8}', 'dim')}  ", look.paint(text, *paints) if paints else text, look, 10)


def _wrapped(front: str, text: str, look: Look, indent: int = _INDENT) -> Iterator[str]:
    """Yield a text behind its front, wrapped at blanks to the width, later lines indented."""
    if look.width is None:
        yield f"{front}{text}".replace(_KEPT, " ").rstrip()
        return
    room = max(look.width, _WIDTH_MIN_COUNT) - indent
    for k, line in enumerate(_lines(text.split(" "), room)):
        yield f"{front if k == 0 else ' ' * indent}{line}".replace(_KEPT, " ").rstrip()


def _lines(words: Iterable[str], room: int) -> Iterator[str]:
    line, used = "", 0
    for word in words:
        size = _cells(word)
        if line and used + 1 + size > room:
            yield line
            line, used = word, size
        else:
            line, used = (f"{line} {word}", used + 1 + size) if line else (word, size)
    yield line


def _cells(word: str) -> int:
    """Return the columns a word takes, colours left out."""
    return len(word) if "\x1b" not in word else len(_without_paint(word))


def _without_paint(text: str) -> str:
    parts = text.split("\x1b[")
    return parts[0] + "".join(part.partition("m")[2] for part in parts[1:])
