"""A runner on a Ray cluster as its supervisor watches it: started in an actor, or found again by the actor's name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from runfold.events.assignment import Mark
from runfold.workers.hatchery import STOP_MARGIN_S, StopDeadline
from runfold.workers.logs import log_bug
from runfold.workers.places import Place
from runfold.workers.placing import RunnerHere
from runfold.workers.pools.ray.actor import HEED_EVERY_S, Ended
from runfold.workers.pools.ray.library import Actor, ActorLost, ActorUnreachable, Ray, RayError

AGAIN_S: Final = 0.5
ANSWER_TIMEOUT_S: Final = 1.0
BROKEN_MAX_S: Final = 3.0
"""How long a broken connection may take to come again. Ray itself takes some twenty seconds to call a node dead."""
KILL_MARGIN_S: Final = STOP_MARGIN_S + 4.0
"""The actor kills a runner that does not stop; this much later the actor itself is killed."""
_LOG: Final = logging.getLogger("runfold.workers")


class RayRunner:
    """A runner by its actor, which `reach` returns once there is one. `on_silence` hears of a node out of reach."""

    def __init__(
        self,
        ray: Ray,
        node: str,
        reach: Callable[[], Awaitable[Actor]],
        adopt_within_s: float,
        on_end: Callable[[], None],
        on_silence: Callable[[str], None],
        place: Place | None = None,
        *,
        secret: bytes,
    ) -> None:
        self.node = node
        self.told = 0
        self.secret = secret
        self._ray = ray
        self._reach = reach
        self._adopt_within_s = adopt_within_s
        self._on_end = on_end
        self._on_silence = on_silence
        self._place = place
        self._actor: Actor | None = None
        self._ended: Ended | None = None
        self._ended_s: float | None = None
        self._stop: tuple[str, float, Mark | None] | None = None
        self._deadline = StopDeadline(f"the runner on {node}", self._kill, KILL_MARGIN_S)
        self._stopping: asyncio.Task[None] | None = None
        self._heeding: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._live(), name=f"runner on {node}")

    @property
    def place(self) -> Place:
        """Who it is: only of one that was found."""
        if self._place is None:
            raise RayError(f"the runner on {self.node} was started here, and not found")
        return self._place

    @property
    def here(self) -> RunnerHere:
        """What the planner needs to know."""
        ended = self._ended or Ended()
        return RunnerHere(
            node=self.node,
            ended_s=self._ended_s,
            code=ended.code,
            signal=ended.signal,
            reason=ended.reason,
            told=self.told,
        )

    @property
    def pid(self) -> int | None:
        """Its process on its node: known of one that was found."""
        return self._place.pid if self._place is not None else None

    @property
    def alive(self) -> bool:
        """Whether it lives, or is being started."""
        return self._ended_s is None

    def stop(self, reason: str, grace_s: float, said_by: Mark | None = None) -> None:
        """Tell it to stop; one that does not within `grace_s` and a margin is killed, with its actor."""
        if not self.alive or not self._deadline.tighten(grace_s):
            return
        self._stop = (reason, grace_s, said_by)
        if self._stopping is not None:
            self._stopping.cancel()
        if self._actor is not None:
            self._stopping = asyncio.create_task(self._tell(self._actor), name="runner stop")
            self._stopping.add_done_callback(partial(log_bug, what=f"stopping the runner on {self.node}"))

    async def wait(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._task)

    async def let_go(self) -> None:
        """Leave it to the next supervisor: it goes on."""
        for task in (self._task, self._stopping, self._heeding):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._deadline.close()

    async def _live(self) -> None:
        ended = Ended(reason="nobody could see how it ended")
        try:
            self._actor = await self._reach()
            self._heeding = asyncio.create_task(self._heed(self._actor), name=f"heed {self.node}")
            self._heeding.add_done_callback(partial(log_bug, what=f"heeding the actor on {self.node}"))
            if self._stop is not None:
                await self._tell(self._actor)
            ended = await self._end_of(self._actor)
        except (ActorLost, ActorUnreachable, RayError) as error:
            ended = Ended(reason=f"its actor is gone: {error}")
        finally:
            self._ended, self._ended_s = ended, time.monotonic()
            for task in (self._stopping, self._heeding):
                if task is not None:
                    task.cancel()
            self._deadline.cancel()
            self._on_end()
        if self._actor is not None:
            await self._ray.kill(self._actor)

    async def _end_of(self, actor: Actor) -> Ended:
        """Wait for the runner's end."""
        answer = await lasting(
            actor, "ended", lambda: actor.call("heed", self._adopt_within_s), lambda: self._on_silence(self.node)
        )
        if isinstance(answer, bytes):
            return msgspec.msgpack.decode(answer, type=Ended)
        return Ended(reason=f"its actor answered {answer!r}")

    async def _heed(self, actor: Actor) -> None:
        """Tell the actor that it has a supervisor, for as long as it lives."""
        while True:
            with contextlib.suppress(ActorUnreachable, ActorLost):
                await actor.call("heed", self._adopt_within_s)
            await asyncio.sleep(HEED_EVERY_S)

    async def _tell(self, actor: Actor) -> None:
        """Have the actor stop the runner, as was said last."""
        if self._stop is not None:
            with contextlib.suppress(ActorUnreachable, ActorLost):
                await actor.call("stop", *self._stop)

    async def _kill(self) -> None:
        if self._actor is None:
            _LOG.warning("the actor on %s could not be started in time; its placement is given back", self.node)
            self._task.cancel()
            return
        _LOG.warning("the runner on %s did not end in time and is killed, with its actor", self.node)
        await self._ray.kill(self._actor)


async def lasting(
    actor: Actor, method: str, probe: Callable[[], Awaitable[object]], on_silence: Callable[[], None]
) -> object:
    """Wait for the answer to a call that may take for ever. `probe` makes another one, that is answered at once.

    An actor whose connection is broken, and stays so, is lost with its machine: `on_silence` is called.

    Raises:
        ActorLost: there will be no answer.
    """
    broken_s: float | None = None
    while True:
        try:
            if broken_s is not None:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await probe()
                broken_s = None
            return await actor.call(method)
        except (ActorUnreachable, TimeoutError) as error:
            broken_s = broken_s or time.monotonic()
            if time.monotonic() > broken_s + BROKEN_MAX_S:
                why = str(error) or "it does not answer"
                on_silence()
                raise ActorLost(f"it was not to be reached for {BROKEN_MAX_S:g} s: {why}") from None
            await asyncio.sleep(AGAIN_S)
