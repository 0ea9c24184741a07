"""Frames on a byte stream: four bytes of length, big-endian, then that many bytes of message. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from runfold.workers.errors import LinkError

HEADER: Final = struct.Struct(">I")


def frame(payload: bytes, limit_bytes: int) -> bytes:
    """Return `payload` with its length before it."""
    if len(payload) > limit_bytes:
        raise LinkError(f"a message of {len(payload)} bytes is over the limit of {limit_bytes} bytes")
    return HEADER.pack(len(payload)) + payload


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

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)
