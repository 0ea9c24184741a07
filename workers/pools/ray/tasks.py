"""Validations on a Ray cluster, as their supervisor has them: begun in an actor each, or found again by its name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
from collections.abc import Collection
from functools import partial
from typing import Final

import msgspec

from runfold.events.assignment import Assignment
from runfold.workers.config import values_of
from runfold.workers.logs import log_failure
from runfold.workers.outside import Order, Said
from runfold.workers.placing import SEPARATOR
from runfold.workers.pools.ray.actor import HEED_EVERY_S
from runfold.workers.pools.ray.book import RayBook
from runfold.workers.pools.ray.chips import chips_on
from runfold.workers.pools.ray.gpus import gpus_on
from runfold.workers.pools.ray.handle import ANSWER_TIMEOUT_S, lasting
from runfold.workers.pools.ray.held import Reserved
from runfold.workers.pools.ray.library import Actor, ActorLost, ActorUnreachable, Group, Ray, RayNode
from runfold.workers.pools.ray.validator import Begin, Over, TaskStanding, Validator
from runfold.workers.remote import RemoteTask, RemoteTaskLost
from runfold.workers.tpus import TPU, VISIBLE_CHIPS, chips_environment

TASK: Final = "-task"
"""What the name of a validation's actor ends with, but for what all of the pool's end with."""
TASK_END_TIMEOUT_S: Final = 5.0
"""How long an actor may take to end a validation before it is ended itself, and the validation with it."""
REAP_TIMEOUT_S: Final = 10.0
"""How long the end of those that are wanted no more is waited for when the pool is closed, however many they are."""
_LOG: Final = logging.getLogger("runfold.workers")


class RayTasks:
    """See `workers/remote.py`."""

    def __init__(self, ray: Ray, book: RayBook, prefix: str, suffix: str) -> None:
        self._ray = ray
        self._book = book
        self._prefix, self._suffix = prefix, f"{TASK}{suffix}"
        self._found: dict[str, str] = {}
        self._doing: set[str] = set()
        self._lets_go = False
        self._reaping: set[asyncio.Task[None]] = set()

    # --- what an earlier supervisor has left

    def owns(self, name: str) -> bool:
        """Whether an actor, by its name, is that of a validation."""
        return name.endswith(self._suffix)

    async def find(self, name: str, standing: bytes, groups: Collection[Group]) -> None:
        """Keep what an actor says of itself: it holds its place, and waits to be asked for."""
        told = msgspec.msgpack.decode(standing, type=TaskStanding)
        group = next((group for group in groups if group.id == told.group), None)
        if group is not None:
            where = [node or "" for node in await self._ray.bundles(group)]
            self._book.reserved[told.key] = Reserved(group, where, told.resources)
            self._found[told.key] = name
            _LOG.warning("the validation %s was left by an earlier supervisor", told.key)

    def holds(self, key: str) -> bool:
        """Whether one is left with this key."""
        return key in self._found

    def hear(self, assignment: Assignment) -> None:
        """End those that are left of a run and wanted no more."""
        mine = f"{assignment.run}{SEPARATOR}"
        wanted = {f"{mine}{task.id}" for task in assignment.tasks}
        for key in [key for key in self._found if key.startswith(mine) and key not in wanted]:
            _LOG.warning("the validation %s is wanted no more, and is ended", key)
            task = asyncio.create_task(self._reap(key, self._found.pop(key)), name=f"end {key}")
            self._reaping.add(task)
            task.add_done_callback(self._reaping.discard)
            says = (
                f"the validation {key} could not be ended in order; what it held is given back, and it ends with that"
            )
            task.add_done_callback(partial(log_failure, what=says))

    async def _reap(self, key: str, name: str) -> None:
        try:
            if (actor := await self._ray.actor(name)) is not None:
                await self._end(actor)
        finally:
            self._book.release(key)

    def let_go(self) -> None:
        """Leave all that are under way, with what they hold."""
        self._lets_go = True
        for key in (*self._doing, *self._found):
            self._book.reserved.pop(key, None)

    async def close(self) -> None:
        """Wait until what is being ended has ended, if the cluster answers at all."""
        if not (reaping := set(self._reaping)):
            return
        _, late = await asyncio.wait(reaping, timeout=REAP_TIMEOUT_S)
        for task in late:
            _LOG.warning("%s: not done within %g s; what it held is given back", task.get_name(), REAP_TIMEOUT_S)
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    # --- doing

    async def do(self, task: RemoteTask) -> Said:
        """Begin a validation where its key holds something, or go on with one that was left; return what came of it."""
        actor: Actor | None = None
        self._doing.add(task.key)
        node = self._node(task.key)
        called = node.name if node is not None else "a node that is gone"
        try:
            found = self._found.pop(task.key, None)
            actor = await (self._started(task, node) if found is None else self._reached(found))
            return await self._answer(actor, task, called)
        except (ActorLost, ActorUnreachable) as error:
            raise RemoteTaskLost(f"what watched over it on {called} is gone: {error}") from None
        finally:
            self._doing.discard(task.key)
            if actor is not None and not self._lets_go:
                await self._end(actor)

    def _node(self, key: str) -> RayNode | None:
        reserved = self._book.reserved.get(key)
        name = self._book.name_of(reserved.bundles[0]) if reserved is not None and reserved.bundles else None
        return self._book.node(name) if name is not None else None

    async def _reached(self, name: str) -> Actor:
        if (actor := await self._ray.actor(name)) is None:
            raise ActorLost("it ended while there was no supervisor")
        return actor

    async def _started(self, task: RemoteTask, node: RayNode | None) -> Actor:
        reserved = self._book.reserved.get(task.key)
        if reserved is None or node is None:
            raise ActorLost(f"{task.key} holds no place any more")
        name = f"{self._prefix}{task.key}-{task.attempt}-{secrets.token_hex(2)}{self._suffix}"
        # Asked for before there is an actor: that may take long, and one that hears nothing for long gives all back.
        shown = await self._devices(reserved, node)
        actor = await self._ray.create_actor(Validator, name, reserved.group, 0, task.runtime_env)
        begin = Begin(
            key=task.key,
            resources=dict(reserved.resources),
            order=_there(task, shown, node.name),
            question=task.question,
            working_dir=task.working_dir,
            own_dir="working_dir" in task.runtime_env,
            adopt_within_s=task.adopt_within_s,
        )
        try:
            await actor.call("start", msgspec.msgpack.encode(begin))
        except ActorUnreachable as error:
            # It may have heard or not: a second call could begin it twice.
            await self._ray.kill(actor)
            raise ActorLost(str(error)) from None
        return actor

    async def _devices(self, reserved: Reserved, node: RayNode) -> dict[str, str]:
        """Return the variables by which a process sees the GPUs and TPU chips that are its own."""
        gpus, chips = await asyncio.gather(
            gpus_on(self._ray, reserved.group, [0], reserved.resources.get("GPU", 0.0)),
            chips_on(self._ray, reserved.group, [0], reserved.resources.get(TPU, 0.0), node),
        )
        return {**gpus, **chips_environment(chips.get(VISIBLE_CHIPS), 1, 0)}

    async def _answer(self, actor: Actor, task: RemoteTask, node: str) -> Said:
        over = asyncio.Event()
        heeding = asyncio.create_task(self._heed(actor, task.adopt_within_s, over), name=f"heed {task.key}")
        try:
            answer = await lasting(actor, "said", lambda: actor.call("standing"), lambda: self._book.suspect(node))
            over.set()
            # What it is telling now was printed before the rest.
            await asyncio.wait({heeding}, timeout=ANSWER_TIMEOUT_S)
        finally:
            heeding.cancel()
            await asyncio.gather(heeding, return_exceptions=True)
        if not isinstance(answer, bytes):
            raise ActorLost(f"it answered {answer!r}")
        told = msgspec.msgpack.decode(answer, type=Over)
        _print(told.printed)
        return told.said

    async def _heed(self, actor: Actor, adopt_within_s: float, over: asyncio.Event) -> None:
        """Tell the actor that it has a supervisor, and print here what the validation prints there."""
        while not over.is_set():
            with contextlib.suppress(ActorUnreachable, ActorLost):
                _print(await actor.call("heed", adopt_within_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEED_EVERY_S):
                    await over.wait()

    async def _end(self, actor: Actor) -> None:
        """Have the actor end what it does, then end it."""
        with contextlib.suppress(ActorUnreachable, ActorLost, TimeoutError):
            async with asyncio.timeout(TASK_END_TIMEOUT_S):
                await actor.call("end")
        await self._ray.kill(actor)


def _there(task: RemoteTask, shown: dict[str, str], node: str) -> Order:
    """Return the order as it is for a node: like a rank there it has secret variables and its GPUs, then the job's."""
    env = {**values_of(task.secret_env), **shown, **task.order.env, "RUNFOLD_NODE": node}
    return msgspec.structs.replace(task.order, env=env)


def _print(printed: object) -> None:
    """A validation prints where one of this machine would: to this process's standard error."""
    if isinstance(printed, bytes) and printed:
        sys.stderr.write(printed.decode(errors="replace"))
        sys.stderr.flush()
