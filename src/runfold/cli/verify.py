"""`runfold verify`: decide a run's log again, and compare."""

from __future__ import annotations

import asyncio

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.replaying import TargetArgument, look, show_json, show_lines
from runfold.controller.main import decider
from runfold.locate import find
from runfold.replay.show import render_verify
from runfold.replay.verify import verify
from runfold.sources import open_history


def command(
    target: TargetArgument,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Decide again on the inputs that the log recorded. The same decider must decide the same."""
    history = asyncio.run(open_history(find(data, server, context), target))
    report = verify(history, decider=decider())
    show_json(report) if output == "json" else show_lines(render_verify(report, look()))
    raise typer.Exit(report.exit_code())
