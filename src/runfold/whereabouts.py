"""Where the storage of a run is: its job, which stands in its first entry, says that."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from runfold.errors import UnreachableError
from runfold.events.entry import NotAnEntry, decode_entry
from runfold.events.log import LogUnavailable
from runfold.events.nats.errors import BrokerError
from runfold.events.nats.generations import open_log
from runfold.events.transitions import RunAccepted
from runfold.locate import STORAGE_FOLDER
from runfold.runs import clients

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.events.entry import Entry
    from runfold.events.job import Job
    from runfold.locate import Where
    from runfold.replay.history import History


async def storage_path(where: Where, run: str, kept: History | None = None) -> str | None:
    """Return the directory or URL of a run's storage, from what is kept of it or else from the service.

    None where it cannot be told: one that stands in the data directory of a pool elsewhere, or a run without an entry.
    """
    job = _job_of(kept.entries[0]) if kept is not None and kept.entries else None
    if kept is None:
        with suppress(BrokerError, UnreachableError, LogUnavailable, NotAnEntry):
            async with clients(where) as each:
                async for client in each:
                    job = job or await _accepted(client, run)
    if job is None:
        return None
    name = job.storage_name or job.name or run
    if job.storage_path is not None:
        return f"{job.storage_path.rstrip('/')}/{name}"
    local = where.data_dir / STORAGE_FOLDER / name
    return str(local) if await asyncio.to_thread(local.is_dir) else None


async def _accepted(client: Client, run: str) -> Job | None:
    log = await open_log(client.connection, run)
    first = await client.api.next_message(client.names.log, log.subject, 1)
    return None if first is None else _job_of(decode_entry(first.data))


def _job_of(entry: Entry) -> Job | None:
    return next((item.job for item in entry.transitions if isinstance(item, RunAccepted)), None)
