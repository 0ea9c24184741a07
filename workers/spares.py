"""Processes that wait for their start: what the ranks of the next attempt need not be forked for."""

from __future__ import annotations

import contextlib

from runfold.workers import rank
from runfold.workers.errors import SpawnError
from runfold.workers.handle import RankHandle
from runfold.workers.spawner import Spawner


class Spares:
    """Ranks of one fork server, those that live and those that wait."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._ranks: list[RankHandle] = []
        self._waiting: list[RankHandle] = []

    @property
    def pids(self) -> list[int]:
        """The processes that wait."""
        return [spare.pid for spare in self._waiting if spare.ended is None]

    async def take(self) -> RankHandle:
        """Return a process that waits for its start, or fork one; raise `SpawnError` when that cannot be."""
        found = self._next() or await RankHandle.fork(self._spawner)
        self._ranks = [*self._living(), found]
        return found

    async def provide(self) -> None:
        """Have as many as there are ranks."""
        with contextlib.suppress(SpawnError):
            while not self._spawner.lost and len(self._waiting) < len(self._living()):
                self._waiting.append(await RankHandle.fork(self._spawner, rank.SPARE))

    async def idle(self) -> None:
        """Wait until no rank lives."""
        for one in self._ranks:
            await one.gone()

    async def close(self) -> None:
        """End those that wait."""
        for spare in self._waiting:
            with contextlib.suppress(SpawnError):
                await spare.kill()
            spare.close()
        self._waiting.clear()

    def _next(self) -> RankHandle | None:
        while self._waiting:
            spare = self._waiting.pop(0)
            if spare.ended is None:
                return spare
            spare.close()
        return None

    def _living(self) -> list[RankHandle]:
        return [one for one in self._ranks if one.ended is None]
