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
from runfold.events.nats.output import read_output
from runfold.growing import Growing
from runfold.keepsake import keep_archived
from runfold.replay.archive import archive_path, write_archive
from runfold.replay.closing import close, course_in, named_blobs
from runfold.replay.errors import CannotRead
from runfold.replay.source import load
from runfold.replay.store import open_store
from runfold.replay.unarchive import RankOutput, archived_beside, read_last
from runfold.sources import live_history

if TYPE_CHECKING:
    from collections.abc import Iterable
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

    No more of the log is held than a segment. Raises:
        BrokerError: the broker did not answer.
        ReplayError: the log is damaged, or another one is archived there; no more was written than goes before.
        OSError: the disk refuses.
    """
    store = open_store(archive_path(data_dir, run))
    grown = await Growing(client, store, run).go_on()
    if grown.head is None:
        raise CannotRead(f"{run} was not archived: its log holds no entry")
    last = await asyncio.to_thread(read_last, store)
    if last is None or last.head != grown.head:
        course = await asyncio.to_thread(course_in, store, run)
        blobs, outputs = await _beside(client, run, course.named_blobs)
        last = await asyncio.to_thread(close, store, course, grown, blobs, outputs)
    if last is not None:
        await asyncio.to_thread(keep_archived, store, last, data_dir)
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
    blobs, outputs = await _beside(client, history.run, named_blobs(history))
    return await asyncio.to_thread(write_archive, history, target, blobs=blobs, outputs=outputs)


async def _beside(client: Client, run: str, names: Iterable[str]) -> tuple[dict[str, bytes], list[RankOutput]]:
    """Return the blobs of these names as far as they can be had, and the output of each rank."""
    blobs: dict[str, bytes] = {}
    for name in names:
        try:
            blobs[name] = await Blobs(client.connection).get(f"sha256:{name}")
        except (BlobMissing, BlobDamaged):
            continue  # the manifest says that it could not be had
    batches: dict[tuple[int, int], list[bytes]] = {}
    async for batch in read_output(client.connection, run):
        batches.setdefault((batch.attempt, batch.rank), []).append(batch.data)
    return blobs, [
        RankOutput(attempt=attempt, rank=rank, batches=tuple(found)) for (attempt, rank), found in batches.items()
    ]
