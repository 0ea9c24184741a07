"""A run's archive, whole: its log, the blobs that its entries name, its last output."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runfold.client import open_client
from runfold.events.base import Document
from runfold.events.entry import Head
from runfold.events.job import RUN_ID
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.errors import BlobDamaged, BlobMissing
from runfold.events.nats.generations import open_log
from runfold.events.nats.output import read_output
from runfold.keepsake import keep_archived
from runfold.replay.archive import archive_path, named_blobs, write_archive
from runfold.replay.source import load, read_log
from runfold.replay.unarchive import RankOutput, archived_beside
from runfold.sources import live_history

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.client import Client
    from runfold.locate import Where
    from runfold.replay.history import History
    from runfold.replay.manifest import LastManifest


class Archived(Document, frozen=True, kw_only=True):
    """What an archive holds now; `outcome` is None while it is not closed, since the run goes on."""

    run: str
    url: str
    entries: int
    head: Head
    outcome: str | None


async def archive_run(client: Client, run: str, data_dir: Path) -> LastManifest | None:
    """Archive a run under `data_dir`: its log, the blobs it names, its last output. None while it goes on.

    Raises:
        BrokerError: the broker did not answer.
        ReplayError: the log is damaged, or another one is archived there; nothing was written.
        OSError: the disk refuses.
    """
    history = await read_log(await open_log(client.connection, run), run)
    last = await _archive_live(client, history, archive_path(data_dir, run))
    if last is not None:
        await asyncio.to_thread(keep_archived, history, data_dir)
    return last


async def archive_to(where: Where, target: str, url: str) -> Archived:
    """Archive a run to a directory or URL: from the service, or from an archive or export that stands elsewhere.

    Raises what `archive_run` and `open_history` raise.
    """
    history = None
    if RUN_ID.fullmatch(target):
        for address in where.services():
            async with open_client(address) as client:
                history = await live_history(client, target)
                if history is not None:
                    return _archived(history, url, await _archive_live(client, history, url))
    history = load(target, data_dir=where.data_dir)
    blobs, outputs = archived_beside(history)
    return _archived(history, url, write_archive(history, url, blobs=blobs, outputs=outputs))


def _archived(history: History, url: str, last: LastManifest | None) -> Archived:
    outcome = None if last is None else last.outcome
    return Archived(run=history.run, url=url, entries=len(history.links), head=history.head, outcome=outcome)


async def _archive_live(client: Client, history: History, target: str) -> LastManifest | None:
    blobs: dict[str, bytes] = {}
    for name in named_blobs(history):
        try:
            blobs[name] = await Blobs(client.connection).get(f"sha256:{name}")
        except (BlobMissing, BlobDamaged):
            continue  # the manifest says that it could not be had
    batches: dict[tuple[int, int], list[bytes]] = {}
    async for batch in read_output(client.connection, history.run):
        batches.setdefault((batch.attempt, batch.rank), []).append(batch.data)
    outputs = [
        RankOutput(attempt=attempt, rank=rank, batches=tuple(found)) for (attempt, rank), found in batches.items()
    ]
    return await asyncio.to_thread(write_archive, history, target, blobs=blobs, outputs=outputs)
