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
from runfold.workers.config import value_of
from runfold.workers.life import RankLife
from runfold.workers.nccl import RAS_VARIABLE, RasReport, ask_ras
from runfold.workers.stacks import Look, where

KEEP_TIMEOUT_S: Final = 5.0
_LOG: Final = logging.getLogger("runfold.workers")


class Lookout:
    """Looks at the ranks that `lives` returns; all at once, as they may wait for each other."""

    def __init__(self, lives: Callable[[], list[RankLife]], blobs: Blobs) -> None:
        self._lives = lives
        self._blobs = blobs

    async def do(self, task: Task, work: Work) -> TaskEnded:
        """Look, and return what was seen as the end of the task."""
        lives = self._lives()
        report = asyncio.ensure_future(_ras(work))
        looks = await asyncio.gather(*(self._look(life) for life in lives))
        nccl = await report
        seen = await asyncio.gather(*(self._see(life, look, nccl) for life, look in zip(lives, looks, strict=True)))
        attempt = max((life.start.attempt for life in lives), default=0)
        found = tuple(one for one in seen if one is not None)
        return msgspec.structs.replace(ended(task, attempt), seen=found)

    async def _look(self, life: RankLife) -> tuple[Look, str | None] | None:
        """See what a rank does, and in which collective it waited all the while."""
        waits_in = life.posture.waits_in
        if life.handle is None:
            return None
        look = await life.handle.look()
        waiting = look.doing != "stopped" and waits_in is not None and waits_in == life.posture.waits_in
        return look, waits_in if waiting else None

    async def _see(
        self, life: RankLife, found: tuple[Look, str | None] | None, nccl: RasReport | None
    ) -> RankSeen | None:
        if found is None:
            return None
        start, (look, waits_in) = life.start, found
        seen = RankSeen(
            rank=start.rank,
            life=start.life,
            doing="collective" if waits_in is not None else look.doing,
            where=where(look.text, start.working_dir),
            waits_in=waits_in,
            trouble=look.trouble,
            nccl=nccl.words if nccl is not None else None,
        )
        text = "\n".join(part for part in (look.text, nccl.text if nccl is not None else "") if part)
        return await self._kept(seen, _titled(life, seen, text)) if text else seen

    async def _kept(self, seen: RankSeen, text: str) -> RankSeen:
        try:
            digest = await self._blobs.put(text.encode(), timeout_s=KEEP_TIMEOUT_S)
        except (BrokerError, ValueError) as error:
            _LOG.warning("the stacks of rank %d are not kept: %s", seen.rank, error)
            return msgspec.structs.replace(seen, trouble=f"its stacks could not be kept: {error}")
        return msgspec.structs.replace(seen, stacks=digest)


async def _ras(work: Work) -> RasReport | None:
    """Ask NCCL, where the job or this process says that it may be asked."""
    address = work.env.get(RAS_VARIABLE) or value_of(RAS_VARIABLE)
    return await ask_ras(address) if address else None


def _titled(life: RankLife, seen: RankSeen, text: str) -> str:
    start = life.start
    title = f"runfold: rank {start.rank} of attempt {start.attempt} (process {life.pid}) {seen.words}"
    return f"{title}\n{text.rstrip()}\n"
