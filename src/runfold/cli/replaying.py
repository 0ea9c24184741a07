"""What the commands that ask a log share: what they ask, and how they print the answer."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import say
from runfold.config import read_settings
from runfold.replay.escape import to_json
from runfold.replay.look import Look

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.replay.history import History

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, an archive's directory or URL, or an exported file.", show_default=False
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="N|TIME", help="Only from entry N or a time on.", show_default=False),
]


def say_followed(*histories: History) -> None:
    """Say of each log that is damaged how far it can be followed, and why no further."""
    for history in histories:
        if history.damages:
            say(history.followed)


def look(*, full: bool = False) -> Look:
    """Return how text is set: as wide as the terminal and in colour, or plain when piped."""
    if not sys.stdout.isatty():
        return Look(full=full)
    return Look(width=shutil.get_terminal_size().columns, color=not read_settings().no_color, full=full)


def show_lines(lines: Iterable[str]) -> None:
    """Print rendered lines."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def show_json(value: object) -> None:
    """Print a document as JSON that no text in it can break."""
    sys.stdout.write(to_json(value).decode() + "\n")
