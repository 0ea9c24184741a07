"""Streams that are full: which, and what waits for it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from runfold.events.nats.errors import BrokerClosed, BrokerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from runfold.client import Client
    from runfold.events.nats.api import StreamInfo
    from runfold.events.nats.names import Names

LOOK_EVERY_S: Final = 2.0
MESSAGE_MIN_BYTES: Final = 4096
"""What a stream without a limit for its messages must have room for."""

_ADVICE: Final = "`runfold gc --older-than 30d`, or more storage for the broker"


async def shortage(client: Client) -> str | None:
    """Return which stream that runs cannot do without is full, and what follows from it; None when none is.

    Raises:
        BrokerError: the broker did not answer.
    """
    for stream, what in _waits(client.names).items():
        info = await client.api.stream_info(stream)
        if info is not None and (text := short_text(info, what)) is not None:
            return text
    return None


def short_text(info: StreamInfo, what: str) -> str | None:
    """Return that a stream is full: it cannot take the largest of its messages; None when it can."""
    room = info.config.max_bytes
    left = max(room - info.state.bytes, 0)
    if room <= 0 or left >= max(info.config.max_msg_size, MESSAGE_MIN_BYTES):
        return None
    return (
        f"{info.config.name} is full: {left} of {room} bytes are left, too few for its largest message. {what} until "
        f"there is room; nothing acknowledged is lost. To make room: {_ADVICE}"
    )


@asynccontextmanager
async def shortage_told(client: Client, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Say when a stream is full, and when it has room again, for as long as the block lasts."""
    telling = asyncio.ensure_future(_tell(client, say))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(client: Client, say: Callable[[str], None]) -> None:
    full = False
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            short = await shortage(client)
        except BrokerClosed:
            return
        except BrokerError:
            continue  # the broker is away: told by others
        if short is not None and not full:
            say(short)
        elif short is None and full:
            say("there is room again")
        full = short is not None


def _waits(names: Names) -> Mapping[str, str]:
    """What waits when a stream is full."""
    return {
        names.log: "Decisions wait, of every run,",
        names.inbox: "What ranks report and users ask for waits at its sender",
        names.jobs: "No job is taken",
        names.assignments: "Nobody is told of new decisions",
        names.stream_of(names.owners_bucket): "No job becomes a run",
    }
