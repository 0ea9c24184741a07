"""`runfold submit`: publish a job, print its run's id."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say
from runfold.cli.jobs import NameOption, SetOption, TargetArgument, WorkersOption, job_of
from runfold.cli.show import print_json, print_text
from runfold.client import open_client
from runfold.events.nats.errors import BrokerError
from runfold.locate import find
from runfold.room import shortage

if TYPE_CHECKING:
    from runfold.client import Receipt
    from runfold.events.job import Job
    from runfold.locate import Address

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
    job = job_of(where, address, target, workers, settings, name)
    receipt = asyncio.run(_submit(address, job))
    if output == "json":
        print_json({"run": receipt.run, "sequence": receipt.sequence, "repeated": receipt.repeated})
    else:
        print_text(receipt.run)
    if follow:
        from runfold.cli.watch import watch_run

        raise typer.Exit(asyncio.run(watch_run(where, receipt.run, stream=sys.stderr, submitted=receipt)))


async def _submit(address: Address, job: Job) -> Receipt:
    async with open_client(address) as client:
        receipt = await client.submit(job)
        try:
            short = await shortage(client)
        except BrokerError:
            return receipt  # the job is stored all the same
        if short:
            say(f"{receipt.run} is stored, and has to wait: {short}")
        return receipt
