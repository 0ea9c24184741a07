"""`runfold replay`: a run's story from its log, or its state at any point."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.config import read_settings
from runfold.locate import find
from runfold.replay.at import state_at
from runfold.replay.escape import to_json
from runfold.replay.render import Look, render_story, render_timeline
from runfold.replay.show import render_snapshot
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.sources import open_history

if TYPE_CHECKING:
    from collections.abc import Iterable

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, an archive's directory or URL, or an exported file.", show_default=False
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="N|TIME", help="The state after entry N, or at a time.", show_default=False),
]
FullOption = Annotated[bool, typer.Option("--full", help="Show tracebacks and output whole.")]


def command(
    target: TargetArgument,
    at: AtOption = None,
    full: FullOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Tell a run's story from its log: what was seen, what was decided on it, and why.

    TIME is seconds of the run's clock (+12.5, 12s, 1h2m), or a moment as in 2026-11-30T05:48:28Z.
    """
    history = asyncio.run(open_history(find(data, server, context), target))
    if at is not None:
        snapshot = state_at(history, at)
        show_json(snapshot) if output == "json" else show_lines(render_snapshot(snapshot, look(full=full)))
        return
    told = timeline(history)
    if output == "json":
        show_json({"story": story(history), "timeline": told})
        return
    show_lines(render_story(story(history), look(full=full)))
    print()
    show_lines(render_timeline(told, look(full=full)))


def look(*, full: bool = False) -> Look:
    """Return how text is set: as wide as the terminal and in colour, or plain when piped."""
    if not sys.stdout.isatty():
        return Look(full=full)
    return Look(width=shutil.get_terminal_size().columns, color=not read_settings().no_color, full=full)


def show_lines(lines: Iterable[str]) -> None:
    """Print rendered lines."""
    for line in lines:
        print(line)


def show_json(value: object) -> None:
    """Print a document as JSON that no text in it can break."""
    sys.stdout.write(to_json(value).decode() + "\n")
