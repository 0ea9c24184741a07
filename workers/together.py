"""Tasks that work side by side for as long as all of them do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TypeVar

T = TypeVar("T")


async def until_one_ends(tasks: Collection[asyncio.Future[T]]) -> None:
    """Wait until one of them ends, end the others, and raise what the one that ended raised, if anything."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def comes_first(event: asyncio.Event, other: asyncio.Event) -> None:
    """Wait for an event; without end when the other one has come before it."""
    await event.wait()
    if other.is_set():
        await asyncio.Event().wait()
