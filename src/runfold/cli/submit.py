"""`runfold submit`: publish a job, print its run's id."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.show import print_json
from runfold.client import open_client
from runfold.jobs import job_from
from runfold.locate import find

if TYPE_CHECKING:
    from runfold.client import Receipt
    from runfold.events.job import Job
    from runfold.locate import Address, Where

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="MODULE:FUNCTION, FILE.py:FUNCTION, or a job file (.toml, .json).",
        show_default=False,
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="N", help="How many ranks.", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Set a field of the job, as in failure.max_failures=3.", show_default=False
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="What the run is called.", show_default=False)
]
FollowOption = Annotated[bool, typer.Option("--follow", help="Watch the run until it ends.")]


def command(
    target: TargetArgument,
    workers: WorkersOption = None,
    settings: SetOption = None,
    name: NameOption = None,
    follow: FollowOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Publish a job. Its run's id stands alone on standard output; the broker's acknowledgement is the receipt."""
    where = find(data, server, context)
    address = where.required_service()
    job = job_of(where, target, workers, settings, name)
    receipt = asyncio.run(_submit(address, job))
    if output == "json":
        print_json({"run": receipt.run, "sequence": receipt.sequence, "repeated": receipt.repeated})
    else:
        print(receipt.run, flush=True)
    if follow:
        from runfold.cli.watch import watch_run

        raise typer.Exit(asyncio.run(watch_run(where, receipt.run, stream=sys.stderr, submitted=receipt)))


def job_of(where: Where, target: str, workers: int | None, settings: list[str] | None, name: str | None) -> Job:
    """Return the job that a command line asks for.

    Where the service stands elsewhere on this machine, its supervisor is told to look for the code here; one on another
    machine has its own working directory.
    """
    service = where.service()
    here = str(Path.cwd()) if service is not None and service.local else None
    return job_from(
        target,
        workers=workers,
        settings=settings or (),
        name=name,
        working_dir=here,
        requested_by=where.settings.user,
    )


async def _submit(address: Address, job: Job) -> Receipt:
    async with open_client(address) as client:
        return await client.submit(job)
