"""`runfold ls`: runs, or refused jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.show import print_json, print_text, table
from runfold.locate import find
from runfold.runs import list_refused, list_runs

if TYPE_CHECKING:
    from runfold.events.refusal import JobRefused
    from runfold.runs import Listed

RefusedOption = Annotated[bool, typer.Option("--refused", help="List the jobs that were refused instead.")]


def command(
    refused: RefusedOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """List the runs of the service and of the archive, the newest first."""
    where = find(data, server, context)
    if refused:
        jobs = asyncio.run(list_refused(where))
        print_json(jobs) if output == "json" else print_text(_refused_table(jobs))
        return
    runs = asyncio.run(list_runs(where))
    print_json(runs) if output == "json" else print_text(_runs_table(runs))


def _runs_table(runs: list[Listed]) -> str:
    rows = [(r.run, r.state, str(r.attempt), r.accepted_at[:19], r.where, r.reason) for r in runs]
    return table(("RUN", "STATE", "ATTEMPT", "ACCEPTED", "WHERE", "REASON"), rows)


def _refused_table(jobs: list[JobRefused]) -> str:
    rows = [(f"job-{job.sequence}", job.run or "", job.at[:19], f"{job.path}: {job.reason}") for job in jobs]
    return table(("JOB", "ASKED FOR", "REFUSED", "WHY"), rows)
