"""What is kept of runs beside their logs: snapshots, and what statuses tell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from runfold.events.snapshot import TAIL
from runfold.events.status import Status

if TYPE_CHECKING:
    from support.memory_ports import MemoryRun


def unsettled_in(runs: Mapping[str, MemoryRun]) -> frozenset[str]:
    """Return the runs whose status tells of no end, or is missing though they have an assignment."""
    return frozenset(
        run
        for run, one in runs.items()
        if (one.status.data is not None and not msgspec.json.decode(one.status.data, type=Status).terminal)
        or (one.status.data is None and one.assignment.data is not None)
    )


class MemorySnapshots:
    """A run's snapshots."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def newest(self) -> list[bytes]:
        """Return what is kept."""
        await asyncio.sleep(0)
        numbers = sorted((int(key) for key in self.kept if key.isdecimal()), reverse=True)
        return [self.kept[key] for key in [TAIL, *map(str, numbers)] if key in self.kept]

    async def put(self, key: str, data: bytes) -> None:
        """Keep one."""
        await asyncio.sleep(0)
        self.kept[key] = data
