"""The runner's warm process: made when a rank has told what it imports, used for the ranks of later attempts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Final

import msgspec

from runfold.workers import warm
from runfold.workers.config import needs_exec
from runfold.workers.devices import VISIBLE
from runfold.workers.errors import SpawnError
from runfold.workers.foresee import foreseen
from runfold.workers.handle import RankHandle
from runfold.workers.limits import SPARES_AFTER_S, WARM_WAIT_S
from runfold.workers.link import Failed, Imported, Start
from runfold.workers.logs import log_bug
from runfold.workers.nest import Nest
from runfold.workers.spares import Spares
from runfold.workers.spawner import Spawner

_PER_RANK: Final = "RUNFOLD_"
_EQUAL: Final = ("RUNFOLD_RUN", "RUNFOLD_NODE")
"""Of the variables that runfold sets, those that are equal for all ranks of a node, whatever the attempt."""
_LOG: Final = logging.getLogger("runfold.workers")


class Brooder:
    """Where the ranks of one run come from on this node: the warm process if there is one that may be forked."""

    def __init__(self, cold: Spawner, run: str, node: str) -> None:
        self._cold = cold
        self._cold_spares = Spares(cold)
        self._where = f"{run}: on {node}"
        self._nest: Nest | None = None
        self._coming: Nest | None = None
        self._old: dict[asyncio.Task[None], Nest] = {}
        self._hurried = asyncio.Event()
        self._said: set[str] = set()
        self._unfit = False
        self._foreseeing: asyncio.Task[None] | None = None
        self._providing: asyncio.Task[None] | None = None

    async def rank_for(self, start: Start) -> RankHandle:
        """Return a process for a rank: warm if that can be, without much waiting."""
        if not _may_be_warm(start):
            return await RankHandle.fork(self._cold)
        if self._foreseeing is None:
            self._foreseeing = self._aside(self._foresee(start), "what ranks will import is not foreseen")
        # Not awaited itself: a guess that fails is no guess, and ends no rank.
        await asyncio.wait([self._foreseeing])
        coming = self._coming
        if self._nest is None and coming is not None and coming.waited_for and _same(coming.warmth, _warmth(start, [])):
            await self._wait_for(coming)
        nest = self._nest
        if nest is not None and not _same(nest.warmth, _warmth(start, [])):
            self._refuse("their environment or entry point is another one than before")
        elif nest is not None:
            try:
                found = await nest.rank()
            except SpawnError as error:
                self._refuse(str(error))
            else:
                self._provide_later(nest)
                return found
        self._provide_later(self._cold_spares)
        return await self._cold_spares.take()

    def hear(self, start: Start, message: Imported | Failed) -> None:
        """Hear what a rank has imported, or that it has failed."""
        match message:
            case Imported():
                self._learn(start, message)
            case Failed():
                if self._nest is not None:
                    self._nest.expect()

    def _provide_later(self, nest: Nest | Spares) -> None:
        """Fork spares once the ranks are at work: not while they start."""
        if self._providing is not None:
            self._providing.cancel()
        self._providing = self._aside(self._provide(nest), "there are no spare ranks")

    async def _provide(self, nest: Nest | Spares) -> None:
        await asyncio.sleep(SPARES_AFTER_S)
        if nest is not self._cold_spares:
            await self._cold_spares.close()
        await nest.provide()

    def _learn(self, start: Start, imported: Imported) -> None:
        """Import what a rank has imported in advance for those to come, if it is new."""
        if self._unfit or not _may_be_warm(start):
            return
        newest = self._coming or self._nest
        wanted = _warmth(start, imported.modules)
        if newest is not None and _same(newest.warmth, wanted):
            known = newest.warmth.modules
            wanted = msgspec.structs.replace(wanted, modules=list(dict.fromkeys([*known, *wanted.modules])))
            if len(wanted.modules) == len(known):
                return
        self._begin(wanted, waited_for=imported.loading)

    @property
    def settled(self) -> bool:
        """Whether nothing is being imported in advance."""
        return self._coming is None

    @property
    def spares(self) -> list[int]:
        """The processes that wait for a start."""
        return self._nest.spares if self._nest is not None else self._cold_spares.pids

    def hurry(self) -> None:
        """Let nobody wait for imports: a rank that is being started is to end."""
        self._hurried.set()

    async def close(self) -> None:
        """End all warm processes, and what ranks of theirs there still are."""
        self._unfit = True
        if self._providing is not None:
            self._providing.cancel()
            await asyncio.wait([self._providing])
        nests = [nest for nest in (self._nest, self._coming, *self._old.values()) if nest is not None]
        self._nest = self._coming = None
        await self._cold_spares.close()
        old = list(self._old)
        for task in old:
            task.cancel()
        ending = [self._aside(nest.close(), "a warm process has not ended") for nest in nests]
        if old or ending:
            await asyncio.wait([*old, *ending])

    async def _foresee(self, start: Start) -> None:
        modules = await asyncio.to_thread(foreseen, start)
        if modules and not self._unfit:
            self._begin(_warmth(start, modules), waited_for=True)

    def _begin(self, warmth: warm.Warmth, *, waited_for: bool) -> None:
        if self._coming is not None:
            self._end(self._coming)
        self._coming = Nest(warmth, self._cold, waited_for=waited_for)
        self._coming.starting.add_done_callback(lambda _: self._settle())

    async def _wait_for(self, coming: Nest) -> None:
        """Wait until it has imported, which it has begun earlier than a rank could now; not if nobody has the time."""
        self._hurried.clear()
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait([coming.starting, hurried], timeout=WARM_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurried.cancel()
        self._settle()

    def _settle(self) -> None:
        """Take what has started in place of what was there; or say why it cannot be."""
        coming = self._coming
        if coming is None or not coming.starting.done():
            return
        self._coming = None
        if coming.usable:
            if self._nest is not None:
                self._end(self._nest)
            self._nest = coming
            return
        error = None if coming.starting.cancelled() else coming.starting.exception()
        self._end(coming)
        self._unfit = True
        if error is not None:
            self._say(str(error))

    def _refuse(self, reason: str) -> None:
        """Use it no more; the next ranks tell what they import, and another one is made."""
        if self._nest is not None:
            self._end(self._nest)
            self._nest = None
        self._say(reason)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _LOG.warning("%s ranks are started cold, importing by themselves: %s", self._where, reason)

    def _end(self, nest: Nest) -> None:
        task = self._aside(_end_when_idle(nest), "a warm process has not ended")
        self._old[task] = nest
        task.add_done_callback(lambda done: self._old.pop(done, None))

    def _aside(self, doing: Coroutine[object, object, None], bug: str) -> asyncio.Task[None]:
        """Do something beside the ranks, which a bug in it does not reach."""
        task = asyncio.create_task(doing, name=bug)
        task.add_done_callback(partial(log_bug, what=f"{self._where} {bug}"))
        return task


async def _end_when_idle(nest: Nest) -> None:
    await nest.idle()
    await nest.close()


def _may_be_warm(start: Start) -> bool:
    return start.warm and not needs_exec(start.env)


def _warmth(start: Start, modules: list[str]) -> warm.Warmth:
    env = {name: value for name, value in start.env.items() if not name.startswith(_PER_RANK) or name in _EQUAL}
    env.pop(VISIBLE, None)  # looked at when CUDA is initialised: never there
    return warm.Warmth(modules, env, start.working_dir, start.entrypoint)


def _same(one: warm.Warmth, other: warm.Warmth) -> bool:
    return (one.env, one.working_dir, one.program) == (other.env, other.working_dir, other.program)
