"""Text that came over the wire, made fit for one line of a log: nothing in it can forge a line or drive a terminal."""

from __future__ import annotations

import traceback
from typing import Final, cast

SHOWN_MAX_COUNT: Final = 400
"""Longest text shown, in characters."""


def shown(text: object, max_count: int = SHOWN_MAX_COUNT) -> str:
    """Return a text on one line, everything that is not plainly printable escaped, cut at `max_count`."""
    cut = str(text)[: max_count + 1]
    line = "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii") for c in cut)
    return line if len(line) <= max_count else line[: max_count - 1] + "…"


def shown_error(error: BaseException) -> str:
    """Return an exception with its traceback, each line escaped for itself."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(shown(line) for line in lines)


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a group; the error itself when it is none."""
    first: BaseException = error
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    return first


def root_of(error: BaseException) -> str:
    """Return the first error of a group, by type and message."""
    first = first_of(error)
    return f"{type(first).__name__}: {first}"
