"""How lines for people are set: width, colours, durations, counts.

On a terminal lines are wrapped to its width and coloured; piped, a row stays on one line and nothing is coloured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from runfold.events.base import Value

Paint = Literal["bold", "dim", "red", "green", "yellow", "cyan"]
_CODES: Final[dict[Paint, str]] = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

FIELD_INDENT: Final = 10
"""Columns before what a field says."""

_WIDTH_MIN_COUNT: Final = 60
KEPT: Final = "\u00a0"
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


def state_paint(state: str) -> Paint:
    """Return the colour of a state."""
    if state in ("finished", "running"):
        return "green"
    return "red" if state == "errored" else "yellow" if state in ("restarting", "rescheduling", "aborted") else "cyan"


def seconds(duration_s: float) -> str:
    """Return a duration as people say it: `9.2 s`, `3 m 20 s`, `2 h 05 m`."""
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, rest = divmod(round(duration_s), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} m" if hours else f"{minutes} m {rest:02d} s"


def field(name: str, text: str, look: Look, *paints: Paint) -> Iterator[str]:
    """Yield a text behind the name of what it says, wrapped below itself."""
    front = f"{look.paint(f'{name:<8}', 'dim')}  "
    yield from wrapped(front, look.paint(text, *paints) if paints else text, look, FIELD_INDENT)


def wrapped(front: str, text: str, look: Look, indent: int) -> Iterator[str]:
    """Yield a text behind its front, wrapped at blanks to the width, later lines indented."""
    if look.width is None:
        yield f"{front}{text}".replace(KEPT, " ").rstrip()
        return
    room = max(look.width, _WIDTH_MIN_COUNT) - indent
    for k, line in enumerate(_lines(text.split(" "), room)):
        yield f"{front if k == 0 else ' ' * indent}{line}".replace(KEPT, " ").rstrip()


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
