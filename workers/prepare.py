"""What a rank needs before it can be started: fetched, tried again where the broker may come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from runfold.events.nats.blobs import Blobs
from runfold.events.nats.errors import ApiRefused, BlobDamaged, BlobMissing, Unanswered
from runfold.workers.layout import StorageSpec
from runfold.workers.link import Start
from runfold.workers.load import Code

BLOB: Final = "blob:"
FETCH_TRIES_MAX: Final = 3
FETCH_RETRY_S: Final = 0.5


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: the message for the rank, what has to be fetched for it, and what stands in the way of it."""

    start: Start
    blob: str | None = None
    obstacle: str | None = None
    metrics: bool = True
    next_port: int | None = None
    storage: Callable[[], Awaitable[StorageSpec]] | None = None
    callbacks: tuple[str, ...] = ()
    datasets: str | None = None


async def prepared(order: Order, blobs: Blobs) -> Start:
    """Return the start with all that it needs. Raises `BrokerError` when something cannot be had."""
    start = order.start
    if order.blob is not None:
        start = replace(start, blob=await _fetch(order.blob, blobs))
    if order.storage is not None:
        start = replace(start, storage=await order.storage())
    if order.callbacks:
        start = replace(start, callbacks=[await code_of(entrypoint, blobs) for entrypoint in order.callbacks])
    if order.datasets is not None:
        start = replace(start, datasets=await _fetch(order.datasets.removeprefix(BLOB), blobs))
    return start


async def code_of(entrypoint: str, blobs: Blobs) -> Code:
    """Return an entry point with the bytes of one that is a blob."""
    is_blob = entrypoint.startswith(BLOB)
    return Code(entrypoint, await _fetch(entrypoint.removeprefix(BLOB), blobs) if is_blob else None)


async def _fetch(digest: str, blobs: Blobs) -> bytes:
    for _ in range(FETCH_TRIES_MAX - 1):
        try:
            return await blobs.get(digest)
        except (BlobMissing, BlobDamaged):
            raise
        except (Unanswered, ApiRefused):
            await asyncio.sleep(FETCH_RETRY_S)
    return await blobs.get(digest)
