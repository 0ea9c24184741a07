"""Streams that are full are named, with what waits for them; said once, and that there is room again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from runfold.events.nats.api import StreamConfig, StreamInfo, StreamState
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.names import Names
from runfold.room import LOOK_EVERY_S, MESSAGE_MIN_BYTES, short_text, shortage, shortage_told
from support.virtual import run_virtual

if TYPE_CHECKING:
    from runfold.client import Client

ROOM_BYTES = 1_000_000
LARGEST_BYTES = 10_000


class Streams:
    """The streams of a broker, of which one may be full, or which does not answer."""

    def __init__(self) -> None:
        self.left = dict.fromkeys(("RUNFOLD_LOG", "RUNFOLD_INBOX"), LARGEST_BYTES)
        self.away = False

    async def stream_info(self, stream: str) -> StreamInfo | None:
        if self.away:
            raise Unanswered(stream, "nobody there")
        if stream not in self.left:
            return None
        return info(self.left[stream], LARGEST_BYTES, stream)


def info(left: int, largest: int, stream: str = "RUNFOLD_LOG") -> StreamInfo:
    config = StreamConfig(name=stream, max_bytes=ROOM_BYTES, max_msg_size=largest)
    return StreamInfo(config=config, state=StreamState(bytes=ROOM_BYTES - left), created="")


def client(streams: Streams) -> Client:
    return cast("Client", SimpleNamespace(api=streams, names=Names()))


def test_a_stream_is_full_when_its_largest_message_has_no_room() -> None:
    assert short_text(info(LARGEST_BYTES, LARGEST_BYTES), "x") is None
    assert (short_text(info(LARGEST_BYTES - 1, LARGEST_BYTES), "Much waits") or "").startswith(
        "RUNFOLD_LOG is full: 9999 of 1000000 bytes are left, too few for its largest message. Much waits until"
    )
    assert short_text(info(MESSAGE_MIN_BYTES, -1), "x") is None
    assert short_text(info(MESSAGE_MIN_BYTES - 1, -1), "x") is not None
    unlimited = StreamInfo(config=StreamConfig(name="s"), state=StreamState(bytes=5), created="")
    assert short_text(unlimited, "x") is None


def test_the_first_that_is_full_is_named_with_what_waits() -> None:
    streams = Streams()
    assert run_virtual(shortage(client(streams))) is None
    streams.left["RUNFOLD_INBOX"] = 0
    told = run_virtual(shortage(client(streams))) or ""
    assert told.startswith("RUNFOLD_INBOX is full: 0 of 1000000 bytes")
    assert "What ranks report" in told


def test_it_is_said_once_and_that_there_is_room_again() -> None:
    streams, said = Streams(), list[str]()

    async def story() -> None:
        async with shortage_told(client(streams), said.append):
            await asyncio.sleep(2 * LOOK_EVERY_S)
            assert said == []
            streams.left["RUNFOLD_LOG"] = 0
            await asyncio.sleep(3 * LOOK_EVERY_S)
            streams.away = True
            await asyncio.sleep(3 * LOOK_EVERY_S)
            streams.away, streams.left["RUNFOLD_LOG"] = False, LARGEST_BYTES
            await asyncio.sleep(3 * LOOK_EVERY_S)

    run_virtual(story())
    assert [text.partition(":")[0] for text in said] == ["RUNFOLD_LOG is full", "there is room again"]
