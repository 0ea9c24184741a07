"""The runner's end of a rank's link: whole messages in, messages out, on the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import msgspec

from runfold.workers.errors import LinkError
from runfold.workers.frames import FrameSplitter, frame
from runfold.workers.limits import LINK_FRAME_MAX_BYTES, REPLY_FRAME_MAX_BYTES
from runfold.workers.link import FROM_RANK, FromRank, FromRunner


class RankChannel(asyncio.Protocol):
    """One rank's link. `on_message` is called for each message in order; `ended` resolves when the link is over."""

    def __init__(self, on_message: Callable[[FromRank], None]) -> None:
        self._on_message = on_message
        self._splitter = FrameSplitter(LINK_FRAME_MAX_BYTES)
        self._transport: asyncio.Transport | None = None
        self._error: LinkError | None = None
        self._ended: asyncio.Future[LinkError | None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, sock: socket.socket, on_message: Callable[[FromRank], None]) -> RankChannel:
        """Take over a connected socket."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: cls(on_message), sock=sock)
        return channel

    def send(self, message: FromRunner) -> None:
        """Send a message; one to a rank whose link is over is dropped, since its end is told elsewhere."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(msgspec.msgpack.encode(message), REPLY_FRAME_MAX_BYTES))

    def pause(self) -> None:
        """Read no more until `resume`: once the socket is full the rank's `report` waits, and nothing is dropped."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """End the link; what was sent is still written."""
        if self._transport is not None:
            self._transport.close()

    async def ended(self) -> LinkError | None:
        """Wait until the link is over: None for an ordinary end, else what was wrong with what came over it."""
        return await asyncio.shield(self._ended)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with what has arrived."""
        if self._error is not None:
            return
        try:
            for payload in self._splitter.feed(data):
                self._on_message(FROM_RANK.decode(payload))
        except (LinkError, msgspec.DecodeError) as error:
            # The user's code may write to any descriptor: from here on nothing on this link can be trusted.
            self._error = LinkError(f"what came over the rank's link is no message: {error}")
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the base class's signature
        """Called by the event loop; a broken connection is an end like another."""
        if not self._ended.done():
            self._ended.set_result(self._error)
