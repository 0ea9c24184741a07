"""`runfold whatif`: where a run would have taken another course with other settings."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.replaying import TargetArgument, look, say_followed, show_json, show_lines
from runfold.errors import UsageError
from runfold.jobs import setting_of
from runfold.locate import find
from runfold.replay.answers import render_what_if
from runfold.replay.errors import BadSetting
from runfold.replay.whatif import what_if
from runfold.sources import open_history

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="A field of the job, as in failure.max_failures=5.", show_default=False
    ),
]


def command(
    target: TargetArgument,
    settings: SetOption = None,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Decide a run's recorded facts again with other settings: where it would have parted, and what had come of it.

    The recorded facts are of the course that was taken; where they stop to speak for the other one is said.
    """
    if not settings:
        raise UsageError("whatif: give at least one --set path=value, as in --set failure.max_failures=5")
    history = asyncio.run(open_history(find(data, server, context), target))
    say_followed(history)
    try:
        found = what_if(history, dict(map(setting_of, settings)))
    except BadSetting as error:
        raise UsageError(f"whatif: --set {error}") from error
    show_json(found) if output == "json" else show_lines(render_what_if(found, look()))
