"""`runfold goodput`: what the time of a run went into."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.replaying import TargetArgument, look, say_followed, show_json, show_lines
from runfold.locate import find
from runfold.replay.answers import render_goodput
from runfold.replay.goodput import goodput
from runfold.sources import open_history

SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="N|TIME", help="Count from entry N or a time on.", show_default=False),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="N|TIME", help="Count up to entry N or a time.", show_default=False),
]


def command(
    target: TargetArgument,
    since: SinceOption = None,
    until: UntilOption = None,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Tell how much of a run's clock was productive, and what the rest went into; the parts sum to it exactly."""
    history = asyncio.run(open_history(find(data, server, context), target))
    say_followed(history)
    found = goodput(history, since, until)
    show_json(found) if output == "json" else show_lines(render_goodput(found, look()))
