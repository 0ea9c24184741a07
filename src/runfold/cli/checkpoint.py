"""`runfold checkpoint`: ask a run for a checkpoint."""

from __future__ import annotations

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.wishes import ask_and_show
from runfold.events.requests import CheckpointNow
from runfold.ids import new_request_id
from runfold.locate import find


def command(
    run: RunArgument,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Ask the ranks for a checkpoint at their next chance, and wait for the answer of the controller.

    The training function sees it as runfold.should_checkpoint().
    """
    where = find(data, server, context)
    request = CheckpointNow(id=new_request_id(), by=where.settings.user)
    ask_and_show(where, run, request, output)
