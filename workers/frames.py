"""Frames on a byte stream: four bytes of length, big-endian, then that many bytes of message."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from runfold.workers.errors import LinkError

if TYPE_CHECKING:
    from asyncio import StreamReader

HEADER: Final = struct.Struct(">I")


def frame(payload: bytes, limit_bytes: int) -> bytes:
    """Return `payload` with its length before it."""
    if len(payload) > limit_bytes:
        raise LinkError(f"a message of {len(payload)} bytes is over the limit of {limit_bytes} bytes")
    return HEADER.pack(len(payload)) + payload


async def read_frame(reader: StreamReader, limit_bytes: int) -> bytes:
    """Return the next payload; wait for it without a limit of time.

    Raises:
        LinkError: its length is over the limit; nothing of it was read.
        IncompleteReadError, OSError: the stream is over.
    """
    (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    if length > limit_bytes:
        raise LinkError(f"a message of {length} bytes is over the limit of {limit_bytes} bytes")
    return await reader.readexactly(length)


class FrameSplitter:
    """Cuts what arrives, in pieces of any size, into payloads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take `data` and yield each payload that is now whole; a frame over the limit is a `LinkError`."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer, start)
            if length > self._limit_bytes:
                raise LinkError(f"a frame of {length} bytes is over the limit of {self._limit_bytes} bytes")
            end = start + HEADER.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                payload = bytes(view[start + HEADER.size : end])
            yield payload
            start = end
        if start:
            del self._buffer[:start]
