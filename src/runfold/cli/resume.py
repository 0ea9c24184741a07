"""`runfold resume`: run a job again from the last checkpoint of a run that is over."""

from __future__ import annotations

import asyncio

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption, say
from runfold.cli.jobs import SetOption
from runfold.cli.running import run_and_show
from runfold.early import start_early
from runfold.locate import find
from runfold.resuming import archived_blobs, resumed_job


def command(
    run: RunArgument,
    settings: SetOption = None,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Run the same job again under a new id, beginning from the last committed checkpoint of RUN."""
    where = find(data, server, context)
    job = asyncio.run(resumed_job(where, run, settings or ()))
    say(f"{job.id} continues {run}")
    early = start_early(where, job) if where.service() is None else None
    blobs = archived_blobs(where, run, job)
    raise typer.Exit(run_and_show(where, job, early, detach=False, as_json=output == "json", blobs=blobs))
