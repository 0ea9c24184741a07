"""Leases in memory: each gone by itself, on the clock of the event loop."""

from __future__ import annotations

import asyncio

from runfold.controller.ports import Renewal, Unavailable
from runfold.events.limits import LEASE_TTL_S


class MemoryLeases:
    """Everybody's leases. `away` is how many calls from now on find no broker."""

    def __init__(self) -> None:
        self.away = 0
        self._lives_count = 0
        self._until: dict[str, tuple[int, float]] = {}

    def holder(self, controller: str) -> MemoryLease:
        """Return the lease of one life of a controller."""
        self._lives_count += 1
        return MemoryLease(self, controller, self._lives_count)

    def forget(self) -> None:
        """Lose all of them, as the broker does when it starts again."""
        self._until.clear()

    def standing(self, controller: str) -> int | None:
        """Return which life holds a lease now."""
        life, until = self._until.get(controller, (0, 0.0))
        return life if asyncio.get_running_loop().time() < until else None

    def set(self, controller: str, life: int | None) -> None:
        """Let a life hold it, or nobody."""
        self._until[controller] = (life or 0, asyncio.get_running_loop().time() + LEASE_TTL_S if life else 0.0)

    def living(self) -> frozenset[str]:
        """Return all holders."""
        return frozenset(name for name in self._until if self.standing(name) is not None)

    async def reach(self) -> None:
        """Reach the broker, or not."""
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise Unavailable("the broker is away")


class MemoryLease:
    """One life's lease."""

    def __init__(self, leases: MemoryLeases, controller: str, life: int) -> None:
        self._leases, self._controller, self._life = leases, controller, life

    async def renew(self) -> Renewal:
        """Hold it."""
        await self._leases.reach()
        standing = self._leases.standing(self._controller)
        if standing is not None and standing > self._life:
            return "taken"
        self._leases.set(self._controller, self._life)
        return "kept" if standing == self._life else "gained"

    async def release(self) -> None:
        """Let go of it."""
        await self._leases.reach()
        if self._leases.standing(self._controller) == self._life:
            self._leases.set(self._controller, None)

    async def living(self) -> frozenset[str]:
        """Return all holders."""
        await self._leases.reach()
        return self._leases.living()
