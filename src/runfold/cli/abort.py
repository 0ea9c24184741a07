"""`runfold abort`: end a run as aborted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.admin import open_admin
from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.show import print_json, print_text
from runfold.cli.wishes import ask_and_show
from runfold.errors import UsageError
from runfold.events.requests import AbortRun
from runfold.forcing import force_stop
from runfold.ids import new_request_id
from runfold.locate import find

if TYPE_CHECKING:
    from runfold.locate import Where

ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.", show_default=False)
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Stop the group of a quarantined run, outside its log (administrators).")
]


def command(
    run: RunArgument,
    reason: ReasonOption,
    force: ForceOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Ask for a run to be ended as aborted, and wait for the answer. The run then shuts down in an orderly way."""
    if not reason.strip():
        raise UsageError("abort: --reason must say why; it is kept in the log")
    where = find(data, server, context)
    if force:
        answer = asyncio.run(_force(where, run, reason))
        print_json({"run": run, "answer": answer}) if output == "json" else print_text(f"{run}: {answer}")
        return
    request = AbortRun(id=new_request_id(), reason=reason, by=where.settings.user)
    ask_and_show(where, run, request, output)


async def _force(where: Where, run: str, reason: str) -> str:
    async with open_admin(where) as admin:
        return await force_stop(admin, run, reason)
