"""What a process prints on a node of a cluster, kept until its supervisor fetches it: the last of it, up to a size."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

PRINTED_MAX_BYTES: Final = 256 * 1024
"""So much is kept between two times that it is fetched."""
_READ_BYTES: Final = 64 * 1024


class Printed:
    """A pipe that is always read: who prints never waits for a supervisor. `fd` is given to who prints."""

    def __init__(self) -> None:
        self._reading, self.fd = os.pipe()
        os.set_blocking(self._reading, False)
        self._kept = bytearray()
        self._cut_bytes = 0
        asyncio.get_running_loop().add_reader(self._reading, self._read)

    def given(self) -> None:
        """Whoever prints has it."""
        os.close(self.fd)

    def take(self) -> bytes:
        """Return what was printed since the last call; where too much was, its last part, and how much is missing."""
        self._read()
        found, cut = bytes(self._kept), self._cut_bytes
        self._kept.clear()
        self._cut_bytes = 0
        return found if not cut else b"[%d bytes of output are left out here]\n%s" % (cut, found)

    def _read(self) -> None:
        if self._reading < 0:
            return
        with contextlib.suppress(BlockingIOError):
            # Bounded: who prints without end must not keep this loop.
            for _ in range(PRINTED_MAX_BYTES // _READ_BYTES):
                data = os.read(self._reading, _READ_BYTES)
                if not data:
                    self._close()
                    return
                self._kept += data
                if (over := len(self._kept) - PRINTED_MAX_BYTES) > 0:
                    del self._kept[:over]
                    self._cut_bytes += over

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        self._reading = -1
