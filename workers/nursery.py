"""The supervisor's fork server for user code beside the groups: started when first needed, and again if it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from runfold.workers.spawner import Child, Spawner
from runfold.workers.zygote import Role

TARGET: Final = "runfold.workers.outside:main"
_LOG: Final = logging.getLogger("runfold.workers")


class Nursery:
    """Forks what `workers.outside` runs. Everything ends with it."""

    def __init__(self) -> None:
        self._spawner: Spawner | None = None
        self._lock = asyncio.Lock()

    async def spawn(self, spec: bytes, fds: Mapping[str, int]) -> Child:
        """Fork a process; raise `SpawnError` when that cannot be."""
        return await (await self.warm()).spawn(spec, fds)

    async def warm(self) -> Spawner:
        """Return the fork server once it can fork."""
        async with self._lock:
            if self._spawner is not None and self._spawner.lost:
                _LOG.warning("the fork server of validations and hooks is gone; another one is started")
                await self._spawner.close()
                self._spawner = None
            if self._spawner is None:
                spawner = Spawner.launch(TARGET, Role.RANKS)
                await spawner.start()
                self._spawner = spawner
            return self._spawner

    async def close(self) -> None:
        """End it, and all that it has forked."""
        async with self._lock:
            if self._spawner is not None:
                await self._spawner.close()
                self._spawner = None
