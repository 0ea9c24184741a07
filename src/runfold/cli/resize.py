"""`runfold resize`: another size for an elastic run."""

from __future__ import annotations

from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.wishes import ask_and_show
from runfold.events.requests import ResizeRun
from runfold.ids import new_request_id
from runfold.locate import find

SizeArgument = Annotated[int, typer.Argument(metavar="N", help="How many ranks at most.", show_default=False)]


def command(
    run: RunArgument,
    size: SizeArgument,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Let an elastic run have N ranks, as far as there is room: from now on its size is at most that.

    The ranks are asked for a checkpoint first. A run of a fixed size refuses.
    """
    where = find(data, server, context)
    request = ResizeRun(id=new_request_id(), by=where.settings.user, num_workers=size)
    ask_and_show(where, run, request, output)
