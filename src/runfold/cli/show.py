"""Printing: JSON documents and small tables, the same for every command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from runfold.replay.escape import safe, safe_lines, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO


def print_text(text: str, file: TextIO | None = None) -> None:
    """Print a text, at once. Commands print through here alone: names, reasons and errors are whatever users wrote."""
    print(safe_text(text), file=file, flush=True)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(msgspec.json.format(to_json(value), indent=2).decode() + "\n")


def print_json_line(value: object) -> None:
    """Print a value as JSON on one line, at once: for streams of records."""
    sys.stdout.write(to_json(value).decode() + "\n")
    sys.stdout.flush()


def safe_text(text: str) -> str:
    """Return a text whose lines cannot take a terminal over, whatever a log says in them."""
    return "\n".join(safe_lines(text))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, width_max: int | None = None) -> str:
    """Return rows under a header, in columns as wide as their widest cell; the last one is not padded.

    `width_max` cuts what is longer, where room is short.
    """
    cells = [tuple(header), *(tuple(map(safe, row)) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = (
        "  ".join(cell if i == len(row) - 1 else cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip()
        for row in cells
    )
    return "\n".join(
        line if width_max is None or len(line) <= width_max else f"{line[: width_max - 1]}…" for line in lines
    )
