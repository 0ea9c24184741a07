"""`runfold submit`: publish a job, print its run's id."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say
from runfold.cli.jobs import NameOption, SetOption, TargetArgument, WorkersOption, job_of
from runfold.cli.show import print_json, print_text
from runfold.client import open_client
from runfold.events.nats.errors import BrokerError
from runfold.follow import follow_run
from runfold.jobs import is_job_file
from runfold.locate import find
from runfold.room import shortage
from runfold.run import raise_refused

if TYPE_CHECKING:
    from runfold.client import Client, Receipt
    from runfold.events.job import Job
    from runfold.locate import Address

FollowOption = Annotated[bool, typer.Option("--follow", help="Watch the run until it ends.")]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Do not wait for a controller to take or refuse it.")]
ANSWER_TIMEOUT_S: Final = 10.0
ANSWER_POLL_S: Final = 0.05


def command(
    target: TargetArgument,
    workers: WorkersOption = None,
    settings: SetOption = None,
    name: NameOption = None,
    follow: FollowOption = False,
    no_wait: NoWaitOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Publish a job. Its run's id stands alone on standard output; the broker's acknowledgement is the receipt.

    A controller takes or refuses it at once: that is waited for, ten seconds at most, so that a refusal is told.
    """
    where = find(data, server, context)
    is_job_file(target)  # a file of a kind that is none is told whether there is a service or not
    address = where.required_service()
    job = job_of(where, address, target, workers, settings, name)
    if (hooks := job.hooks).callbacks and not hooks.gates and not hooks.in_ranks:
        say(
            f"no hook of {', '.join(hooks.callbacks)} is asked or called in ranks; `runfold observe` tells what is told"
        )
    receipt = asyncio.run(_submit(address, job, answer_s=0.0 if no_wait or follow else ANSWER_TIMEOUT_S))
    if output == "json":
        print_json({"run": receipt.run, "sequence": receipt.sequence, "repeated": receipt.repeated})
    else:
        print_text(receipt.run)
    if follow:
        from runfold.cli.watch import goes_on, watch_run

        with goes_on(where, receipt.run):
            raise typer.Exit(asyncio.run(watch_run(where, receipt.run, stream=sys.stderr, submitted=receipt)))


async def _submit(address: Address, job: Job, *, answer_s: float) -> Receipt:
    async with open_client(address) as client:
        receipt = await client.submit(job)
        await _answered(client, receipt, answer_s)
        try:
            short = await shortage(client)
        except BrokerError:
            return receipt  # the job is stored all the same
        if short:
            say(f"{receipt.run} is stored, and has to wait: {short}")
        return receipt


async def _answered(client: Client, receipt: Receipt, within_s: float) -> None:
    """Return once a controller has taken the job, or nobody has said anything; raise `JobRefusedError`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    if within_s <= 0:
        return
    try:
        async with follow_run(client, receipt.run, digest=receipt.digest) as following:
            while following.state is None and loop.time() < deadline:
                await raise_refused(client, receipt)
                await asyncio.sleep(ANSWER_POLL_S)
    except BrokerError:
        return  # the job is stored all the same
