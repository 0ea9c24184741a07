"""The task of looking at all ranks of a runner: what they do, and their stacks as blobs that the log names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from runfold.events.assignment import Work
from runfold.events.facts import TaskEnded
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.errors import BrokerError
from runfold.events.stacks import RankSeen
from runfold.events.tasks import Task
from runfold.workers.chores import ended
from runfold.workers.life import RankLife
from runfold.workers.stacks import Look, where

KEEP_TIMEOUT_S: Final = 5.0
_LOG: Final = logging.getLogger("runfold.workers")


class Lookout:
    """Looks at the ranks that `lives` returns; all at once, as they may wait for each other."""

    def __init__(self, lives: Callable[[], list[RankLife]], blobs: Blobs) -> None:
        self._lives = lives
        self._blobs = blobs

    async def do(self, task: Task, work: Work) -> TaskEnded:  # noqa: ARG002  # as every doer's
        """Look, and return what was seen as the end of the task."""
        lives = self._lives()
        seen = await asyncio.gather(*(self._see(life) for life in lives))
        attempt = max((life.start.attempt for life in lives), default=0)
        found = tuple(one for one in seen if one is not None)
        return msgspec.structs.replace(ended(task, attempt), seen=found)

    async def _see(self, life: RankLife) -> RankSeen | None:
        waits_in = life.posture.waits_in
        if life.handle is None:
            return None
        start, look = life.start, await life.handle.look()
        waiting = look.doing != "stopped" and waits_in is not None and waits_in == life.posture.waits_in
        seen = RankSeen(
            rank=start.rank,
            life=start.life,
            doing="collective" if waiting else look.doing,
            where=where(look.text, start.working_dir),
            waits_in=waits_in if waiting else None,
            trouble=look.trouble,
        )
        return await self._kept(seen, _titled(life, seen, look)) if look.text else seen

    async def _kept(self, seen: RankSeen, text: str) -> RankSeen:
        try:
            digest = await self._blobs.put(text.encode(), timeout_s=KEEP_TIMEOUT_S)
        except (BrokerError, ValueError) as error:
            _LOG.warning("the stacks of rank %d are not kept: %s", seen.rank, error)
            return msgspec.structs.replace(seen, trouble=f"its stacks could not be kept: {error}")
        return msgspec.structs.replace(seen, stacks=digest)


def _titled(life: RankLife, seen: RankSeen, look: Look) -> str:
    start = life.start
    title = f"runfold: rank {start.rank} of attempt {start.attempt} (process {life.pid}) {seen.words}"
    return f"{title}\n{look.text.rstrip()}\n"
