"""Which controller owns which run: a key each, changed by compare-and-set."""

from __future__ import annotations

from runfold.controller.ports import Bucket
from runfold.events.job import RUN_ID


class Owners:
    """The keys of one controller. Every call may raise `Unavailable`; asking again is safe."""

    def __init__(self, bucket: Bucket, controller: str) -> None:
        self._bucket = bucket
        self._controller = controller

    async def claim(self, run: str) -> str:
        """Take a run if nobody has it; return the id of the controller that has it now."""
        while not await self._bucket.create(run, self._controller):
            holder = await self._bucket.get(run)
            if holder is not None:
                return holder
        return self._controller

    async def release(self, run: str) -> None:
        """Free a run of ours: its terminal entry and its last assignment stand, or it never came to be."""
        await self._bucket.delete(run, self._controller)

    async def mine(self) -> list[str]:
        """Return the runs of ours, those of a former life of this controller among them."""
        entries = await self._bucket.entries()
        return sorted(run for run, holder in entries.items() if holder == self._controller and RUN_ID.fullmatch(run))
