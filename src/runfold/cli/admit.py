"""`runfold admit`: let a run use a node again that it stays off."""

from __future__ import annotations

from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.wishes import ask_and_show
from runfold.events.requests import AdmitNode
from runfold.ids import new_request_id
from runfold.locate import find

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.", show_default=False)]


def command(
    run: RunArgument,
    node: NodeArgument,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Let a run use a node again: it was excluded for its failures (failure.node_exclude_after), or taken back.

    What the node was blamed for is forgotten.
    """
    where = find(data, server, context)
    request = AdmitNode(id=new_request_id(), by=where.settings.user, node=node)
    ask_and_show(where, run, request, output)
