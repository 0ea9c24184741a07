"""Which controller owns which run: a key each, changed by compare-and-set."""

from __future__ import annotations

from runfold.controller.ports import Bucket
from runfold.events.job import RUN_ID


class Owners:
    """The keys of one controller. Every call may raise `Unavailable`; asking again is safe."""

    def __init__(self, bucket: Bucket, controller: str) -> None:
        self._bucket = bucket
        self.controller = controller

    async def claim(self, run: str) -> str:
        """Take a run if nobody has it; return the id of the controller that has it now."""
        while not await self._bucket.create(run, self.controller):
            holder = await self._bucket.get(run)
            if holder is not None:
                return holder
        return self.controller

    async def release(self, run: str) -> None:
        """Free a run of ours: its terminal entry and its last assignment stand, or it never came to be."""
        await self._bucket.delete(run, self.controller)

    async def reserve(self, key: str, run: str) -> str:
        """Let a run that is claimed have a storage path; return the run that has it now.

        A run without a controller's key is over: its path is free, even if nobody came to say so.
        """
        while not await self._bucket.create(key, run):
            holder = await self._bucket.get(key)
            if holder is None:
                continue
            if holder == run or await self._bucket.get(holder) is not None:
                return holder
            if await self._bucket.replace(key, holder, run):
                return run
        return run

    async def is_held(self, run: str) -> bool:
        """Whether some controller has a run: it is not over."""
        return await self._bucket.get(run) is not None

    async def vacate(self, key: str, run: str) -> None:
        """Free the storage path of a run."""
        await self._bucket.delete(key, run)

    async def inherit(self, run: str, holder: str) -> bool:
        """Take a run from a controller that is gone; False when it is not that one's any more."""
        if await self._bucket.replace(run, holder, self.controller):
            return True
        return await self._bucket.get(run) == self.controller  # by a try whose answer was lost

    async def holders(self) -> dict[str, str]:
        """Return which controller has which run."""
        entries = await self._bucket.entries()
        return {run: entries[run] for run in sorted(entries) if RUN_ID.fullmatch(run)}
