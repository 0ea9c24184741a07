"""The pool of a Ray cluster: placement groups as places, an actor on each node that starts and watches the runner.

Actors and placement groups are detached: they outlive this process, and the next supervisor finds them by name.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from runfold.events.base import Value
from runfold.workers.config import values_of
from runfold.workers.pipe import RunnerSpec
from runfold.workers.places import Place
from runfold.workers.pools.pool import Left, Notice, Watched
from runfold.workers.pools.ray import RayConfig
from runfold.workers.pools.ray.actor import Attendant, Standing
from runfold.workers.pools.ray.book import RayBook
from runfold.workers.pools.ray.chips import chips_on
from runfold.workers.pools.ray.gpus import gpus_on
from runfold.workers.pools.ray.handle import RayRunner
from runfold.workers.pools.ray.held import Reserved, Sight
from runfold.workers.pools.ray.library import Actor, ActorLost, ActorUnreachable, Ray
from runfold.workers.pools.ray.slices import mates, pod_of
from runfold.workers.pools.ray.slicing import heads_held
from runfold.workers.pools.ray.tasks import RayTasks
from runfold.workers.together import until_one_ends
from runfold.workers.tpus import TPU

LOOK_EVERY_S: Final = 0.5
"""How often the cluster is asked which nodes it has, and which of them will go: Ray tells nobody by itself."""
FIND_TIMEOUT_S: Final = 10.0
_LOG: Final = logging.getLogger("runfold.workers")


class Found(Value, frozen=True, kw_only=True):
    """A runner that an earlier supervisor has left: its actor's name, who it is, its placement group."""

    actor: str
    standing: Standing


@asynccontextmanager
async def open_ray_pool(config: RayConfig, *, url: str, namespace: str, pool: str) -> AsyncGenerator[RayPool]:
    """Connect to a cluster for as long as the block lasts; `RayError` when that cannot be.

    What stands there of this pool is known by the namespace and a digest of the broker's address with its password:
    another service on the same cluster is another pool.
    """
    identity = hashlib.sha256(f"{namespace}\0{pool}\0{url}".encode()).hexdigest()[:12]
    ray = await Ray.connect(address=config.address, namespace=f"runfold-{identity}", cpus_count=config.cpus_count)
    try:
        made = RayPool(ray, f"runfold-{namespace}-", f"-{identity}")
        await made.look_around()
        try:
            yield made
        finally:
            await made.remote.close()
            await made.book.close()
    finally:
        await ray.close()


class RayPool:
    """See `pools/pool.py`. Made by `open_ray_pool`."""

    def __init__(self, ray: Ray, prefix: str, suffix: str) -> None:
        self.book = RayBook(ray, prefix, suffix)
        self.remote = RayTasks(ray, self.book, prefix, suffix)
        self.settled_s = 0.0
        self._ray = ray
        self._prefix, self._suffix = prefix, suffix
        self._on_change: Callable[[], None] = lambda: None
        self._found: list[Found] = []
        self._notices: list[Notice] = []
        self._leaving: dict[str, float | None] = {}
        self._own_node = ""

    def attend(self, on_change: Callable[[], None]) -> None:
        """Say whenever something is to be looked at."""
        self._on_change = self.book.on_change = on_change

    async def serve(self) -> None:
        """Reserve for the first of the queue, and watch the cluster."""
        tasks = {
            asyncio.create_task(self.book.reserve(), name="reserve"),
            asyncio.create_task(self._watch(), name="watch the cluster"),
        }
        await until_one_ends(tasks)

    # --- runners

    def start(self, spec: RunnerSpec, on_end: Callable[[], None]) -> Watched:
        """Start a runner on a node where its run has bundles."""
        return RayRunner(
            self._ray,
            spec.node,
            lambda: self._started(spec),
            spec.adopt_within_s,
            on_end,
            self.book.suspect,
            secret=spec.secret,
        )

    async def _started(self, spec: RunnerSpec) -> Actor:
        reserved, node = self.book.reserved.get(spec.held_as or spec.run), self.book.node(spec.node)
        if reserved is None or node is None:
            raise ActorLost(f"{spec.run} holds no place on {spec.node} any more")
        bundles = reserved.on(node.id)
        gpus = spec.resources.get("GPU", 0.0)
        name = f"{self._prefix}{spec.run}-{spec.attempt}-{spec.node}-{secrets.token_hex(2)}{self._suffix}"
        actor, gpus_shown, chips = await asyncio.gather(
            self._ray.create_actor(Attendant, name, reserved.group, bundles[0], spec.runtime_env),
            gpus_on(self._ray, reserved.group, bundles, gpus),
            chips_on(self._ray, reserved.group, bundles, spec.resources.get(TPU, 0.0), node),
        )
        pod, pod_host = pod_of(node)
        told = msgspec.structs.replace(
            spec,
            addr=node.addr,
            places_dir=None,
            adopt=False,
            tied=True,
            env={**values_of(spec.secret_env), **gpus_shown, **chips},
            runtime_env={},
            pod=pod,
            pod_host=pod_host,
        )
        own_dir = "working_dir" in spec.runtime_env
        try:
            await actor.call("start", msgspec.msgpack.encode(told), own_dir, reserved.lent)
        except ActorUnreachable as error:
            # It may have heard or not: a second call could start a second runner.
            await self._ray.kill(actor)
            raise ActorLost(str(error)) from None
        return actor

    # --- what an earlier supervisor has left

    async def look_around(self) -> None:
        """See the cluster for the first time: what it has, and what stands there of this pool."""
        self._own_node = await self._ray.own_node()
        await self._see()
        names = [name for name in await self._ray.actors() if name.endswith(self._suffix)]
        said = zip(names, await asyncio.gather(*map(self._standing, names)), strict=True)
        groups = {group.id: group for group in await self._ray.groups(self._suffix)}
        found: list[Found] = []
        for name, standing in said:
            if standing is not None and self.remote.owns(name):
                await self.remote.find(name, standing, groups.values())
            elif standing is not None:
                found.append(Found(actor=name, standing=msgspec.msgpack.decode(standing, type=Standing)))
        self._found = [one for one in found if one.standing.group in groups]
        for one in self._found:
            group, place = groups[one.standing.group], one.standing.place
            bundles = [node or "" for node in await self._ray.bundles(group)]
            # What was lent is given back with the run's own.
            self.book.reserved.setdefault(
                place.run if one.standing.lent else one.standing.held_as, Reserved(group, bundles, place.resources)
            )
        # Of a node that has lost its runner it is not known whether it is gone as well: Ray takes its time to say so.
        at_work = {one.standing.place.node for one in self._found}
        for held in self.book.reserved.values():
            for name in filter(None, map(self.book.name_of, held.bundles)):
                if name not in at_work:
                    self.book.suspect(name)
        kept = {reserved.group.id for reserved in self.book.reserved.values()}
        for reserved in self.book.reserved.values():
            reserved.heads = await heads_held(self._ray, reserved.group.name, groups.values())
            kept |= {head.group.id for head in reserved.heads}
        for group in groups.values():
            if group.id not in kept:
                _LOG.warning("the placement group %s of an earlier supervisor is given back", group.name)
                self.book.remove(group)
        self.settled_s = time.monotonic()

    async def _standing(self, name: str) -> bytes | None:
        actor = await self._ray.actor(name)
        if actor is None:
            return None
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                said = await actor.call("standing")
        except (ActorLost, ActorUnreachable, TimeoutError) as error:
            _LOG.warning("the actor %s of an earlier supervisor does not say who it is, and is ended: %s", name, error)
            said = b""
        if not isinstance(said, bytes) or not said:
            await self._ray.kill(actor)
            return None
        return said

    def find(self, knows: Callable[[Place], bool], on_end: Callable[[], None]) -> list[Left]:
        """Return the runners that were found when this pool was opened."""
        found, self._found = self._found, []
        return [self._adopted(one, on_end) for one in found if not knows(one.standing.place)]

    def _adopted(self, found: Found, on_end: Callable[[], None]) -> RayRunner:
        async def reach() -> Actor:
            actor = await self._ray.actor(found.actor)
            if actor is None:
                raise ActorLost("it ended while there was no supervisor")
            return actor

        place = found.standing.place
        told = found.standing
        return RayRunner(
            self._ray, place.node, reach, told.adopt_within_s, on_end, self.book.suspect, place, secret=told.secret
        )

    # --- what the cluster does

    def is_here(self, node: str) -> bool:
        """Whether a node is the one by which this process has joined the cluster."""
        return (found := self.book.node(node)) is not None and found.id == self._own_node

    def notices(self) -> list[Notice]:
        """Return what was heard of nodes that go or stay, since the last call."""
        notices, self._notices = self._notices, []
        return notices

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if await self._see():
                self._on_change()

    async def _see(self) -> bool:
        """Look at the cluster once; whether anything is news."""
        nodes, leaving, free = await self._ray.nodes(), await self._ray.draining(), await self._ray.free()
        alive = {node.name: node for node in nodes if node.alive}
        now = {name: leaving[node.id] for name, node in alive.items() if node.id in leaving}
        for node, by in now.items():
            if node not in self._leaving or self._leaving[node] != by:
                within_s = None if by is None else max(0.0, by - time.time())
                self._notices.append(
                    Notice(
                        nodes=(node,), within_s=within_s, reason=f"Ray drains the node {node}", mates=mates(alive, node)
                    )
                )
        for node in self._leaving:
            if node in alive and node not in now:
                stay = mates(alive, node)
                self._notices.append(
                    Notice(nodes=(node,), cancelled=True, mates=() if any(mate in now for mate in stay) else stay)
                )
        self._leaving = now
        frees = {name: free.get(node.id, {}) for name, node in alive.items()}
        is_news = self.book.see(Sight(nodes=alive, free=frees, leaving=frozenset(now)))
        return is_news or bool(self._notices)
