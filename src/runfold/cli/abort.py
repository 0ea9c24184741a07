"""`runfold abort`: end a run as aborted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.show import print_json
from runfold.client import ENDED_ALREADY
from runfold.errors import NotFoundError
from runfold.events.requests import AbortRun
from runfold.ids import new_request_id
from runfold.locate import find
from runfold.runs import clients, find_status

if TYPE_CHECKING:
    from runfold.locate import Where

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
    answer = asyncio.run(_abort(where, run, request))
    if output == "json":
        print_json({"run": run, "request": request.id, "answer": answer})
    else:
        print(f"{run}: {answer}")


async def _abort(where: Where, run: str, request: AbortRun) -> str:
    async with clients(where) as each:
        async for client in each:
            try:
                return await client.request(run, request)
            except NotFoundError:
                continue
    await find_status(where, run)  # one that stands in the archive has ended; NotFoundError for the others
    return ENDED_ALREADY
