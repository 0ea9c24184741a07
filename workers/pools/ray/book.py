"""Who gets places on a Ray cluster: the first of the queue has a placement group asked for, and nobody overtakes it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final

from runfold.events.facts import PlaceOffer
from runfold.events.slices import Slice
from runfold.workers.logs import log_failure
from runfold.workers.mending import PREFIX
from runfold.workers.placing import SEPARATOR
from runfold.workers.pools.kept import with_kept
from runfold.workers.pools.local import Demand, GivenUp, Granted, Waiting
from runfold.workers.pools.ray import slices
from runfold.workers.pools.ray.demands import bad_amount, bundle_of, cpus_of, cpus_on, never_on, room_on, selectors_of
from runfold.workers.pools.ray.held import Reserved, Sight
from runfold.workers.pools.ray.library import (
    ActorLost,
    ActorUnreachable,
    Group,
    GroupRefused,
    Ray,
    RayNode,
    bad_selector,
)
from runfold.workers.pools.ray.moving import RETRY_S, Look, found_again
from runfold.workers.pools.ray.slicing import SlicesNotHad, Slicing, asked
from runfold.workers.pools.room import Room

CLOSE_TIMEOUT_S: Final = 10.0
LOOKS_UNTIL_SEEN_COUNT: Final = 2
_LOG: Final = logging.getLogger("runfold.workers")
SUSPECT_MAX_S: Final = 60.0
"""Within this time Ray says of a node that it is dead, if it is."""


class RayBook:
    """The queue of a pool, and what its runs hold. `see` is called by who watches the cluster."""

    def __init__(self, ray: Ray, prefix: str, suffix: str) -> None:
        self._ray = ray
        self._prefix, self._suffix = prefix, suffix
        self._waiting: dict[str, Demand] = {}
        self._granted: list[Granted] = []
        self._given_up: list[GivenUp] = []
        self._slicing: dict[str, Slicing] = {}
        self._seen = asyncio.Event()
        self._asking: dict[str, tuple[Demand, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._removing: set[asyncio.Task[None]] = set()
        self._cluster = Sight()
        self._ever: dict[str, RayNode] = {}
        self._returning: dict[str, tuple[int, Reserved]] = {}
        self._suspected_s: dict[str, float] = {}
        self.reserved: dict[str, Reserved] = {}
        self.on_change: Callable[[], None] = lambda: None

    # --- what the cluster has

    def see(self, sight: Sight) -> bool:
        """Take what the cluster has now; whether that is news. A node that was there once may come again."""
        before, self._cluster = self._cluster, sight
        self._ever.update(sight.nodes)
        # What was given back shows in the second look after it at the latest.
        self._returning = {run: (left - 1, held) for run, (left, held) in self._returning.items() if left > 1}
        if before.nodes.keys() != sight.nodes.keys() or before.leaving != sight.leaving:
            self._changed.set()
        if is_news := before != sight:
            self._seen.set()
            self._seen = asyncio.Event()
        return is_news

    def suspect(self, name: str) -> None:
        """Take a node for gone although the cluster has it still: nothing answers there."""
        self._suspected_s[name] = time.monotonic()

    def _is_suspect(self, name: str) -> bool:
        return time.monotonic() < self._suspected_s.get(name, -SUSPECT_MAX_S) + SUSPECT_MAX_S

    def node(self, name: str) -> RayNode | None:
        """Return a node by its name, alive or not."""
        return self._ever.get(name)

    def name_of(self, number: str) -> str | None:
        """Return how a node (its id) is called."""
        return next((node.name for node in self._ever.values() if node.id == number), None)

    @property
    def free(self) -> int:
        """Whole CPUs that nobody has reserved."""
        return int(sum(amounts.get("CPU", 0.0) for amounts in self._cluster.free.values()))

    @property
    def nodes(self) -> dict[str, int]:
        """Whole CPUs of each node that is there."""
        return cpus_on(self._cluster.nodes)

    def room(self, demand: Demand) -> Room:
        """Return what there is room for: nodes that will go have none, and nobody has any who waits behind another."""
        demand = slices.in_rays_words(demand)
        free = {name: self._free_for(demand, name) for name in self._cluster.nodes}
        if (kind := slices.slices_of(demand)) is not None:
            return slices.room_in_slices(demand, kind, self._cluster.nodes, free)
        return room_on(self._cluster.nodes, free, demand)

    def avoided(self, demand: Demand) -> tuple[str, ...]:
        """Return the TPU slices that are not whole, or not free for a demand, or have a node that it stays off."""
        kind, nodes = slices.slices_of(demand), self._cluster.nodes
        free = {name: self._free_for(demand, name) for name in nodes}
        return () if kind is None else slices.avoided(nodes, free, kind, demand.excluded)

    async def news(self) -> None:
        """Wait until the cluster is seen to have changed."""
        await self._seen.wait()

    def _free_for(self, demand: Demand, name: str) -> dict[str, float]:
        """Return what a node has free, with what the run itself holds."""
        node = self._cluster.nodes[name]
        if name in self._cluster.leaving:
            return {}
        behind = any(
            other.order < demand.order and not self._waits_for_nodes(other)
            for other in self._waiting.values()
            if other.holder != demand.holder
        )
        own = self.reserved.get(demand.run) or self._returning.get(demand.run, (0, None))[1]
        free = {} if behind else dict(self._cluster.free.get(name, {}))
        under_way = self._slicing.get(demand.run)
        heads = under_way.heads if under_way is not None else own.heads if own is not None else []
        if any(head.node == node.id for head in heads):
            free |= slices.heads_on(node)
        # What is lent is counted with the run's own placement group, whose bundles it has.
        more = [self.reserved[key] for key in self._mends_of(demand.run) if not self.reserved[key].lent]
        for held in [own, *more] if own is not None else more:
            count = len(held.on(node.id))
            for resource, amount in held.resources.items():
                free[resource] = min(free.get(resource, 0.0) + amount * count, node.resources.get(resource, 0.0))
        return free

    def _mends_of(self, run: str) -> list[str]:
        """Return the names of the other places of a run, also of those of which an earlier supervisor knew."""
        return [key for key in self.reserved if key.startswith(f"{run}{SEPARATOR}{PREFIX}")]

    def overdrawn(self) -> list[tuple[str, str]]:
        """Return nothing: a cluster gives no more than it has."""
        return []

    def resize(self, node: str | None, slots: int) -> str | None:  # noqa: ARG002  # as every book's
        """Refuse: who wants another cluster adds nodes to it, or drains some."""
        return "this pool is a Ray cluster: it has what its nodes have; add nodes to it, or drain some"

    # --- the queue

    def never(self, demand: Demand) -> str | None:
        """Return why a demand can never be met: by the cluster standing empty, with every node that it ever had.

        What has had its places once waits for nodes to come back.
        """
        for selector in demand.selectors:
            if (why := bad_selector(selector)) is not None:
                return f"label_selector: {why}"
        if (why := bad_amount(demand)) is not None:
            return why
        if demand.attempt > 1:
            return None
        demand = slices.in_rays_words(demand)
        if (kind := slices.slices_of(demand)) is not None:
            return slices.never_in_slices(demand, kind, self._ever)
        return never_on(self._ever, demand)

    def ask(self, demand: Demand) -> None:
        """Put a demand into the queue, in place of an earlier one of the same run."""
        self._waiting[demand.run] = slices.in_rays_words(demand)
        self._changed.set()

    def withdraw(self, run: str) -> None:
        """Take a run out of the queue."""
        if self._waiting.pop(run, None) is not None:
            self._changed.set()

    def hold(self, demand: Demand, place: PlaceOffer) -> None:
        """Note that a run holds a place already: its runner was found, and with it the placement group."""

    def release(self, run: str) -> None:
        """Give back what a run holds."""
        keys = [key for key in (run, *self._mends_of(run)) if key in self.reserved]
        self._granted = [granted for granted in self._granted if granted.demand.run not in {run, *keys}]
        for key in keys:
            held = self.reserved.pop(key)
            if not held.lent:
                self._returning[key] = (LOOKS_UNTIL_SEEN_COUNT, held)
                for group in (held.group, *(head.group for head in held.heads)):
                    self.remove(group)
        self._changed.set()

    def part(self, run: str, node: str) -> None:
        """Keep it: a cluster has the bundles of a placement group back together."""

    def grant(self) -> list[Granted]:
        """Return who has got places since the last call."""
        granted, self._granted = self._granted, []
        return granted

    def take_back(self, granted: Granted) -> None:
        """Give back what was granted and is not taken: it is reserved under its demand's own name."""
        self.release(granted.demand.run)

    def given_up(self) -> list[GivenUp]:
        """Return whose places were not to be had since the last call."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def waiting(self) -> dict[str, Waiting]:
        """Return how each run of the queue waits."""
        return {
            demand.run: with_kept(
                Waiting(ahead=ahead, free=self.free, needed=cpus_of(demand), what=self._slices_words(demand)),
                demand,
                self._waiting.values(),
                self._waits_for_nodes,
                self._could_be,
            )
            for ahead, demand in enumerate(self._queue())
        }

    def _could_be(self, whole: Demand) -> bool:
        """Whether a group that keeps places could be placed whole now, on what it holds and what is free."""
        nodes = {name: node for name, node in self._cluster.nodes.items() if name not in whole.excluded}
        room = room_on(nodes, {name: self._free_for(whole, name) for name in nodes}, whole)
        return room.fits is not None and room.fits >= whole.num_workers

    def _slices_words(self, demand: Demand) -> str:
        kind = slices.slices_of(demand)
        return "" if kind is None else slices.waiting_words(demand, kind, self.room(demand).slices or 0)

    def _queue(self) -> list[Demand]:
        return sorted(self._waiting.values(), key=lambda demand: demand.order)

    # --- placement groups

    async def reserve(self) -> None:
        """Ask for what those first in the queue need, until cancelled."""
        try:
            while True:
                self._changed.clear()
                wanted = {demand.run: demand for demand in self._in_turn()}
                for run, (demand, task) in list(self._asking.items()):
                    if task.done():
                        task.result()
                    if task.done() or wanted.get(run) != demand:
                        await self._ask_no_more(run)
                for run, demand in wanted.items():
                    if run not in self._asking:
                        task = asyncio.create_task(self._reserved(demand), name=f"reserve {run}")
                        task.add_done_callback(lambda _: self._changed.set())
                        self._asking[run] = (demand, task)
                await self._changed.wait()
        finally:
            for run in list(self._asking):
                await self._ask_no_more(run)

    async def _ask_no_more(self, run: str) -> None:
        _, task = self._asking.pop(run)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _in_turn(self) -> list[Demand]:
        """Return whose turn it is: the first of the queue, and before it those that only other nodes could help.

        What those need is asked for as well: a cluster that grows does so by what is asked for.
        """
        turn: list[Demand] = []
        for demand in self._queue():
            # What its run holds from before is given back first.
            if demand.run not in self.reserved:
                turn.append(demand)
            if not self._waits_for_nodes(demand):
                break
        return turn

    def _waits_for_nodes(self, demand: Demand) -> bool:
        """Whether a demand could not be met by the nodes that it may use if they all stood empty."""
        off = {*demand.excluded, *self._cluster.leaving}
        usable = {name: node for name, node in self._cluster.nodes.items() if name not in off}
        if (kind := slices.slices_of(demand)) is not None:
            return slices.never_in_slices(demand, kind, usable) is not None
        return never_on(usable, demand) is not None

    async def _reserved(self, demand: Demand) -> None:
        """Ask for a demand's placement group, and wait until it is there; one that is wanted no more is given back."""
        if (kind := slices.slices_of(demand)) is not None:
            await self._sliced(demand, kind)
            return
        if await self._moved(demand):
            return
        name = f"{self._prefix}{demand.run}-{demand.attempt}-{secrets.token_hex(2)}{self._suffix}"
        bundles, selectors = [bundle_of(demand)] * demand.num_workers, selectors_of(demand, self._ever)
        try:
            group, ready = await asked(self._ray, self.later, name, bundles, demand.strategy, selectors)
        except GroupRefused as error:
            _LOG.error("%s waits for ever: %s", demand.run, error)  # for people: the message says it all
            await asyncio.Event().wait()
            return
        got = False
        try:
            await ready
            where = await self._ray.bundles(group)
            names = [self.name_of(node) if node is not None else None for node in where]
            got = None not in names and self._waiting.get(demand.run) == demand
            if got:
                self._has(demand, Reserved(group, [str(node) for node in where], bundle_of(demand)), names)
        except (ActorLost, ActorUnreachable) as error:
            _LOG.warning("%s: its placement group is gone, and is asked for again: %s", demand.run, error)
        finally:
            if not got:
                self.remove(group)
        if not got:
            # A node has come or gone this instant: it is seen before it is asked for again.
            await asyncio.sleep(RETRY_S)

    async def _sliced(self, demand: Demand, kind: Slice) -> None:
        """Reserve a demand's TPU slices; what is not to be had in time is given up, and that is told."""
        stem = f"{self._prefix}{demand.run}-{demand.attempt}-{secrets.token_hex(2)}"
        bundle, slicing = bundle_of(demand), Slicing(self._ray, demand, kind, (stem, self._suffix), self)
        self._slicing[demand.run] = slicing
        try:
            had = await slicing.reserve(bundle)
        except SlicesNotHad as error:
            if self._waiting.get(demand.run) == demand:
                del self._waiting[demand.run]
                self._given_up.append(GivenUp(demand=demand, kind=error.kind, reason=str(error)))
                self.on_change()
            return
        finally:
            del self._slicing[demand.run]
        names = [self.name_of(node) for node in had.bundles]
        if None not in names and self._waiting.get(demand.run) == demand:
            self._has(demand, Reserved(had.group, had.bundles, bundle, heads=had.heads), names)
            return
        for group in (had.group, *(head.group for head in had.heads)):
            self.remove(group)
        # A node has come or gone this instant: it is seen before they are asked for again.
        await asyncio.sleep(RETRY_S)

    async def _moved(self, demand: Demand) -> bool:
        """Have another place of the run's own bundles; False where there is none among them."""
        whole = self.reserved.get(demand.of)
        if whole is None:
            return False

        def look() -> Look:
            names = [self.name_of(node) for node in whole.bundles]
            there = self._cluster.nodes.keys()
            usable = there - {*demand.excluded, *self._cluster.leaving}
            return Look(names, there, usable, [name for name in names if name and self._is_suspect(name)])

        async def where() -> list[str | None]:
            return [node and self.name_of(node) for node in await self._ray.bundles(whole.group)]

        if (found := await found_again(demand.num_workers, look, where)) is not None:
            self._lend(demand, whole, *found)
        return found is not None

    def _lend(self, demand: Demand, whole: Reserved, moved: list[int], name: str) -> None:
        number = self._cluster.nodes[name].id
        for index in moved:
            whole.bundles[index] = number
        bundles = [number if index in moved else "" for index in range(len(whole.bundles))]
        self._has(demand, Reserved(whole.group, bundles, whole.resources, lent=True), [name] * len(moved))

    def _has(self, demand: Demand, held: Reserved, names: Sequence[str | None]) -> None:
        del self._waiting[demand.run]
        self.reserved[demand.run] = held
        places = tuple(PlaceOffer(node=str(node), slots=slots) for node, slots in Counter(names).items())
        self._granted.append(Granted(demand=demand, places=places))
        self.on_change()

    def remove(self, group: Group) -> None:
        """Give a placement group back; `close` waits for it."""
        self.later(self._ray.remove_group(group), f"the placement group {group.name}")

    def later(self, doing: Coroutine[object, object, None], what: str) -> None:
        """Give something back, and tell of it by what it is if that fails; `close` waits for it."""
        task = asyncio.create_task(doing, name=f"give back {what}")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)
        says = f"{what} could not be given back; the next supervisor of this pool tries again"
        task.add_done_callback(partial(log_failure, what=says))

    async def close(self) -> None:
        """Wait until what was given back is given back, if the cluster answers at all."""
        if self._removing:
            await asyncio.wait(self._removing, timeout=CLOSE_TIMEOUT_S)
