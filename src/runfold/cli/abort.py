"""`runfold abort`: end a run as aborted."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from runfold.asking import ask
from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.show import print_json, print_text
from runfold.events.requests import AbortRun
from runfold.ids import new_request_id
from runfold.locate import find

ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.", show_default=False)
]


def command(
    run: RunArgument,
    reason: ReasonOption,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Ask for a run to be ended as aborted, and wait for the answer. The run then shuts down in an orderly way."""
    where = find(data, server, context)
    request = AbortRun(id=new_request_id(), reason=reason, by=where.settings.user)
    answer = asyncio.run(ask(where, run, request))
    if output == "json":
        print_json({"run": run, "request": request.id, "answer": answer})
    else:
        print_text(f"{run}: {answer}")
