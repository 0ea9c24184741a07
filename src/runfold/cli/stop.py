"""`runfold stop`: end a run as finished, at its next checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.wishes import ask_and_show
from runfold.errors import UsageError
from runfold.events.requests import StopAtCheckpoint
from runfold.ids import new_request_id
from runfold.locate import find

AtCheckpointOption = Annotated[
    bool, typer.Option("--at-checkpoint", help="End it with its next committed checkpoint: nothing is lost.")
]
WhyOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.", show_default=False)]


def command(
    run: RunArgument,
    at_checkpoint: AtCheckpointOption = False,
    reason: WhyOption = "",
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """End a run as finished once its next checkpoint is committed; the ranks are asked for one."""
    if not at_checkpoint:
        raise UsageError(f"say how: `runfold stop {run} --at-checkpoint`, or `runfold abort {run} --reason TEXT`")
    where = find(data, server, context)
    request = StopAtCheckpoint(id=new_request_id(), by=where.settings.user, reason=reason)
    ask_and_show(where, run, request, output)
