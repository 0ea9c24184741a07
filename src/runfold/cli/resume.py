"""`runfold resume`: run a job again from the newest checkpoint in the storage of a run that is over."""

from __future__ import annotations

import asyncio

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption, say
from runfold.cli.jobs import SetOption
from runfold.cli.running import run_and_show
from runfold.early import start_early
from runfold.errors import EXIT_INTERRUPTED
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
    """Run the job of RUN again under a new id, in RUN's storage, and follow it until it ends.

    It begins from the newest committed checkpoint in that storage: the last one of RUN, or, where a later run has gone
    on in the same storage, the last one of that. On Ctrl-C the service goes on with the run, and only following it
    ends; without a service the run is aborted, as by `run`.
    """
    where = find(data, server, context)
    job = asyncio.run(resumed_job(where, run, settings or ()))
    say(f"{job.id} continues {run}")
    early = start_early(where, job) if where.service() is None else None
    blobs = archived_blobs(where, run, job)
    code = run_and_show(
        where,
        job,
        early,
        detach=True,
        detached_code=EXIT_INTERRUPTED,
        as_json=output == "json",
        blobs=blobs,
    )
    raise typer.Exit(code)
