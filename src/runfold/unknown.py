"""A run that nobody knows: what is said of it, the same by every command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.client import open_client
from runfold.errors import UnreachableError
from runfold.events.job import RUN_ID
from runfold.events.refusal import JobRefused

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.locate import Where

_NUMBERED: Final = re.compile(r"job-([0-9]+)")


async def why_unknown(where: Where, run: str) -> str:
    """Return what is known of a run that neither the service nor the archive has: of a refused job, why it was."""
    for address in where.services():
        try:
            async with open_client(address) as client:
                refused = await refusal_of(client, run)
                given_back = await was_given_back(client, run)
        except UnreachableError:
            continue
        if refused is not None:
            return refused_text(refused)
        if given_back:
            return (
                f"the service has given {run} back (`runfold gc`): its archive has it\n"
                f"There is none in {where.archive_dir}; name the service's data directory by --data, or the archive."
            )
    if where.was_killed(run):
        return f"{run} was killed, and nothing is archived yet: `{where.hint('salvage', run)}` archives what is left"
    return f"there is no run {run!r}\n{_looked(where)}"


async def was_given_back(client: Client, run: str) -> bool:
    """Return whether the service has left only the end of this run."""
    from runfold.events.nats.collected import find_collected

    return RUN_ID.fullmatch(run) is not None and await find_collected(client.connection, run) is not None


async def refusal_of(client: Client, run: str) -> JobRefused | None:
    """Return why the job of this number was refused; None when it was not, or for another name."""
    if (numbered := _NUMBERED.fullmatch(run)) is None:
        return None
    record = await client.refusal(int(numbered[1]))
    return None if record is None else msgspec.json.decode(record, type=JobRefused)


def refused_text(refused: JobRefused) -> str:
    """Return a refusal in a line."""
    return f"job-{refused.sequence} was refused at {refused.at}: {refused.path}: {refused.reason}"


def stopped_text(where: Where) -> str:
    """Return that the service of the data directory is not running, and how to start it."""
    return f"The service of {where.data_dir} is not running; start it again with `runfold up --data {where.data_dir}`"


def not_running_text(where: Where, run: str) -> str:
    """Return why nobody goes on with a run that has not ended by its archive, and what to do."""
    if where.was_killed(run):
        return f"It was killed: `{where.hint('salvage', run)}` ends it in its log and closes its archive"
    return stopped_text(where) if where.stopped else "Nobody goes on with it now"


def _looked(where: Where) -> str:
    if where.named is not None or where.data_dir.is_dir():
        if where.stopped:
            return f"{stopped_text(where)}.\nThe archive in {where.archive_dir} does not know it."
        return f"Neither the service nor the archive in {where.archive_dir} knows it."
    return f"There is no directory {where.data_dir}; name another one by --data DIR or RUNFOLD_DATA."
