"""One warm process, as its runner holds it: from its start to the end of the last rank that was forked from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

import msgspec

from runfold.workers import warm
from runfold.workers.errors import SpawnError
from runfold.workers.handle import RankHandle
from runfold.workers.limits import WARM_START_TIMEOUT_S
from runfold.workers.spares import Spares
from runfold.workers.spawner import Child, Spawner


class Nest:
    """Forks ranks that have their imports done; spares wait for their start already.

    `waited_for`: its imports are those that a rank would do before it enters user code.
    """

    def __init__(self, warmth: warm.Warmth, cold: Spawner, *, waited_for: bool) -> None:
        self.warmth = warmth
        self.waited_for = waited_for
        self._cold = cold
        self._child: Child | None = None
        self._spawner: Spawner | None = None
        self._spares: Spares | None = None
        self._checking: asyncio.Task[str | None] | None = None
        self.starting: asyncio.Task[Spawner] = asyncio.create_task(self._start(), name="warm process")

    async def _start(self) -> Spawner:
        ours, theirs = socket.socketpair()
        streams = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("runfold-stdout", "runfold-stderr")]
        asked = os.memfd_create("runfold-asked", os.MFD_CLOEXEC)
        try:
            with theirs:
                os.write(asked, msgspec.msgpack.encode(self.warmth))
                os.lseek(asked, 0, os.SEEK_SET)
                given = {"command": theirs.fileno(), "asked": asked, "stdout": streams[0], "stderr": streams[1]}
                self._child = child = await self._cold.spawn(warm.SPEC, given)
        except BaseException:
            ours.close()
            raise
        finally:
            for fd in (asked, *streams):
                os.close(fd)
        self._spawner = Spawner(ours, child.pid, None)
        await self._spawner.start(WARM_START_TIMEOUT_S)
        return self._spawner

    @property
    def usable(self) -> bool:
        """Whether ranks can be forked from it now."""
        started = self.starting.done() and not self.starting.cancelled() and self.starting.exception() is None
        return started and self._spawner is not None and not self._spawner.lost

    async def rank(self) -> RankHandle:
        """Return a process that waits for its start; raise `SpawnError` when none may come from here any more."""
        reason = await self._checked()
        if reason is not None:
            raise SpawnError(reason)
        if self._spares is None:
            self._spares = Spares(await asyncio.shield(self.starting))
        return await self._spares.take()

    @property
    def spares(self) -> list[int]:
        """The processes that wait for a start."""
        return self._spares.pids if self._spares is not None else []

    def expect(self) -> None:
        """See to it already that ranks may be forked: one has failed, and others will follow."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check(), name="check of a warm process")

    async def provide(self) -> None:
        """Have as many spares as there are ranks."""
        if self._spares is not None:
            await self._spares.provide()

    async def idle(self) -> None:
        """Wait until no rank of it lives."""
        if self._spares is not None:
            await self._spares.idle()

    async def close(self) -> None:
        """End it, and with it its ranks."""
        tasks = [task for task in (self.starting, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self._spares is not None:
            await self._spares.close()
        if self._child is not None and self._child.ended is None:
            with contextlib.suppress(SpawnError):
                await self._child.kill(signal.SIGKILL)
        if self._spawner is not None:
            await self._spawner.close()

    async def _checked(self) -> str | None:
        self.expect()
        checking, self._checking = self._checking, None
        return None if checking is None else await checking

    async def _check(self) -> str | None:
        try:
            return await (await asyncio.shield(self.starting)).unchanged()
        except SpawnError as error:
            return str(error)
