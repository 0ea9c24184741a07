"""`runfold preempt`: say that nodes of a run will be taken back, or that they stay after all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.wishes import ask_and_show
from runfold.errors import UsageError
from runfold.events.requests import CancelPreemption, NoticePreemption
from runfold.ids import new_request_id
from runfold.locate import find

if TYPE_CHECKING:
    from runfold.events.requests import Request

NodeOption = Annotated[
    list[str], typer.Option("--node", metavar="NODE", help="A node of the run; once for each.", show_default=False)
]
WithinOption = Annotated[
    float | None,
    typer.Option("--within", metavar="SECONDS", help="How soon; two minutes are assumed.", show_default=False),
]
WhyOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.", show_default=False)]
CancelOption = Annotated[bool, typer.Option("--cancel", help="The nodes stay after all, or are there again.")]


def command(
    run: RunArgument,
    node: NodeOption,
    within: WithinOption = None,
    reason: WhyOption = "",
    cancel: CancelOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Say that nodes of a run will be taken back: its ranks save what they have, and it goes on elsewhere.

    The training function sees it as runfold.get_preemption_info() and runfold.should_checkpoint().
    """
    if within is not None and not (math.isfinite(within) and within >= 0):
        raise UsageError(f"--within: must be a finite number of seconds, 0 or more, not {within}")
    if cancel and within is not None:
        raise UsageError("--cancel says that the nodes stay: it has no --within")
    where = find(data, server, context)
    nodes, asked, by = tuple(dict.fromkeys(node)), new_request_id(), where.settings.user
    request: Request = (
        CancelPreemption(id=asked, by=by, nodes=nodes)
        if cancel
        else NoticePreemption(id=asked, by=by, nodes=nodes, within_s=within, reason=reason)
    )
    ask_and_show(where, run, request, output)
