"""Processes that are not our children: known by id and start time together, seen to end, signalled without mistake."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Final

from runfold.workers.processes import is_dead, send_signal, start_time

LOOK_EVERY_S: Final = 0.2
"""How often a process is looked at where the kernel cannot tell of its end."""


class Stranger:
    """A process by id and start time. An id that another process bears by now is an end, and nobody is signalled.

    On Linux it is held by a descriptor of the kernel's, so that its id cannot become another's unnoticed.
    """

    def __init__(self, pid: int, started: float | None) -> None:
        self.pid = pid
        self._started = started
        self._fd = _open(pid)
        if self._fd is not None and not self._same():
            self.close()

    @property
    def alive(self) -> bool:
        """Whether it lives; one that ended and was not reaped yet does not."""
        return self._same() and not is_dead(self.pid)

    async def wait(self) -> None:
        """Wait until it has ended."""
        if self._fd is None:
            while self.alive:  # noqa: ASYNC110  # the kernel tells of its end to its parent alone
                await asyncio.sleep(LOOK_EVERY_S)
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._fd)

    def signal(self, number: signal.Signals) -> bool:
        """Signal it; False when it has ended."""
        if self._fd is not None:
            try:
                signal.pidfd_send_signal(self._fd, number)
            except ProcessLookupError:
                return False
            return True
        return self._same() and send_signal(self.pid, number, group=False)

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _same(self) -> bool:
        return self._started is not None and start_time(self.pid) == self._started


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
