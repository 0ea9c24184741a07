"""The log in memory under the contract suite of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.memory import Fault, MemoryLog, MemoryStore

if TYPE_CHECKING:
    from runfold.events.log import Log


class MemoryRig:
    """See `support.log_rig.LogRig`."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def log(self, run: str = "r") -> Log:
        """See the port."""
        return MemoryLog(run, self.store)

    def deaf(self, run: str = "r") -> Log:
        """See the port."""
        return MemoryLog(run, self.store, faults=[Fault(at=1, kind="deaf")])

    def mute(self, run: str = "r") -> Log:
        """See the port."""
        return MemoryLog(run, self.store, faults=[Fault(at=1, kind="mute")])

    async def stray(self, data: bytes, run: str = "r") -> int:
        """See the port."""
        return self.store.put(run, data)

    async def cut(self, keep: int) -> None:
        """See the port."""
        self.store.cut(keep)

    async def fill(self) -> None:
        """See the port."""
        self.store.full = True
