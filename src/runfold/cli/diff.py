"""`runfold diff`: two moments of a run, or two runs."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.replaying import TargetArgument, look, say_followed, show_json, show_lines
from runfold.locate import find
from runfold.replay.answers import render_moments, render_runs
from runfold.replay.diff import diff_moments, diff_runs
from runfold.sources import open_history

SecondArgument = Annotated[
    str,
    typer.Argument(metavar="RUN2|A", help="Another run; or, with B, a moment: N or TIME.", show_default=False),
]
ThirdArgument = Annotated[
    str | None, typer.Argument(metavar="[B]", help="The other moment of the run.", show_default=False)
]
FullOption = Annotated[bool, typer.Option("--full", help="Show every field that differs.")]


def command(
    target: TargetArgument,
    second: SecondArgument,
    third: ThirdArgument = None,
    full: FullOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show what changed between two moments of a run, or where two runs differ and part."""
    where = find(data, server, context)
    history = asyncio.run(open_history(where, target))
    say_followed(history)
    if third is not None:
        moments = diff_moments(history, second, third)
        show_json(moments) if output == "json" else show_lines(render_moments(moments, look(full=full)))
        return
    other = asyncio.run(open_history(where, second))
    say_followed(other)
    runs = diff_runs(history, other)
    show_json(runs) if output == "json" else show_lines(render_runs(runs, look(full=full)))
