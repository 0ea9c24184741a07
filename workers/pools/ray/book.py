"""Who gets places on a Ray cluster: the first of the queue has a placement group asked for, and nobody overtakes it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from runfold.events.facts import PlaceOffer
from runfold.workers.mending import PREFIX
from runfold.workers.placing import SEPARATOR
from runfold.workers.pools.labels import NODE_LABEL, fits
from runfold.workers.pools.local import Demand, Granted, Slots, Waiting
from runfold.workers.pools.ray.library import (
    ActorLost,
    ActorUnreachable,
    Group,
    GroupRefused,
    Ray,
    RayNode,
    bad_selector,
)
from runfold.workers.pools.room import Room

ACCELERATOR: Final = "accelerator_type:"
ACCELERATOR_SHARE: Final = 0.001
"""How much a rank asks of the resource by which Ray knows a node's kind of accelerator."""
NOTHING: Final[Mapping[str, float]] = {"CPU": 0.001}
"""A bundle cannot be empty."""
NODE_ID_LABEL: Final = "ray.io/node-id"
RETRY_S: Final = 1.0
CLOSE_TIMEOUT_S: Final = 10.0
LOOKS_UNTIL_SEEN_COUNT: Final = 2
_LOG: Final = logging.getLogger("runfold.workers")
SUSPECT_MAX_S: Final = 60.0
"""Within this time Ray says of a node that it is dead, if it is."""


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as it was seen: its nodes, what each has free, and which of them will go, all by name."""

    nodes: dict[str, RayNode] = {}
    free: dict[str, dict[str, float]] = {}
    leaving: frozenset[str] = frozenset()


class Reserved:
    """What a run holds: the placement group, the node (its id) of each of its bundles, what each bundle has.

    `lent`: bundles of the run's own placement group, with which they are given back.
    """

    def __init__(self, group: Group, bundles: list[str], resources: Mapping[str, float], *, lent: bool = False) -> None:
        self.group = group
        self.bundles = bundles
        self.resources = resources
        self.lent = lent

    def on(self, node: str) -> list[int]:
        """Return the bundles on a node (its id)."""
        return [index for index, where in enumerate(self.bundles) if where == node]


class RayBook:
    """The queue of a pool, and what its runs hold. `see` is called by who watches the cluster."""

    def __init__(self, ray: Ray, prefix: str, suffix: str) -> None:
        self._ray = ray
        self._prefix, self._suffix = prefix, suffix
        self._waiting: dict[str, Demand] = {}
        self._granted: list[Granted] = []
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
        return before != sight

    def suspect(self, name: str) -> None:
        """Take a node for gone although the cluster has it still: nothing answers there."""
        self._suspected_s[name] = time.monotonic()

    def _is_suspect(self, name: str | None) -> bool:
        return name is not None and time.monotonic() < self._suspected_s.get(name, -SUSPECT_MAX_S) + SUSPECT_MAX_S

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
        return {name: int(node.resources.get("CPU", 0)) for name, node in self._cluster.nodes.items()}

    def room(self, demand: Demand) -> Room:
        """Return what there is room for: nodes that will go have none, and nobody has any who waits behind another."""
        alike = _as_slots(demand)
        labels = {name: node.labels for name, node in self._cluster.nodes.items()}
        whole = Slots({name: node.resources for name, node in self._cluster.nodes.items()}, labels).room(alike)
        now = Slots({name: self._free_for(demand, name) for name in self._cluster.nodes}, labels).room(alike)
        room = {name: (now.room or {}).get(name, 0) for name in whole.whole or {}}
        return Room(slots=self.nodes, whole=whole.whole, room=room, fits=now.fits)

    def _free_for(self, demand: Demand, name: str) -> dict[str, float]:
        """Return what a node has free, with what the run itself holds."""
        node = self._cluster.nodes[name]
        if name in self._cluster.leaving or any(
            other.order < demand.order and not self._waits_for_nodes(other)
            for run, other in self._waiting.items()
            if run != demand.run
        ):
            return {}
        own = self.reserved.get(demand.run) or self._returning.get(demand.run, (0, None))[1]
        free = dict(self._cluster.free.get(name, {}))
        if own is not None:
            count = len(own.on(node.id))
            for resource, amount in own.resources.items():
                free[resource] = min(free.get(resource, 0.0) + amount * count, node.resources.get(resource, 0.0))
        return free

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
        if (gpus := demand.resources.get("GPU", 0)) > 1 and gpus != int(gpus):
            return f"each rank needs {gpus:g} GPU: Ray gives one GPU in parts, and more than one only whole"
        if demand.attempt > 1:
            return None
        labels = {name: node.labels for name, node in self._ever.items()}
        return Slots({name: node.resources for name, node in self._ever.items()}, labels).never(_as_slots(demand))

    def ask(self, demand: Demand) -> None:
        """Put a demand into the queue, in place of an earlier one of the same run."""
        self._waiting[demand.run] = demand
        self._changed.set()

    def withdraw(self, run: str) -> None:
        """Take a run out of the queue."""
        if self._waiting.pop(run, None) is not None:
            self._changed.set()

    def hold(self, demand: Demand, place: PlaceOffer) -> None:
        """Note that a run holds a place already: its runner was found, and with it the placement group."""

    def release(self, run: str) -> None:
        """Give back what a run holds."""
        # Other places of the run, also those of which only an earlier supervisor knew.
        keys = [key for key in self.reserved if key == run or key.startswith(f"{run}{SEPARATOR}{PREFIX}")]
        self._granted = [granted for granted in self._granted if granted.demand.run not in {run, *keys}]
        for key in keys:
            held = self.reserved.pop(key)
            if not held.lent:
                self._returning[key] = (LOOKS_UNTIL_SEEN_COUNT, held)
                self.remove(held.group)
        self._changed.set()

    def part(self, run: str, node: str) -> None:
        """Keep it: a cluster has the bundles of a placement group back together."""

    def grant(self) -> list[Granted]:
        """Return who has got places since the last call."""
        granted, self._granted = self._granted, []
        return granted

    def waiting(self) -> dict[str, Waiting]:
        """Return how each run of the queue waits."""
        return {
            demand.run: Waiting(ahead=ahead, free=self.free, needed=_cpus(demand))
            for ahead, demand in enumerate(self._queue())
        }

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
        labels = {name: node.labels for name, node in usable.items()}
        whole = Slots({name: node.resources for name, node in usable.items()}, labels)
        return whole.never(_as_slots(demand)) is not None

    async def _reserved(self, demand: Demand) -> None:
        """Ask for a demand's placement group, and wait until it is there; one that is wanted no more is given back."""
        if await self._moved(demand):
            return
        name = f"{self._prefix}{demand.run}-{demand.attempt}-{secrets.token_hex(2)}{self._suffix}"
        bundles, selectors = [_bundle(demand)] * demand.num_workers, self._selectors(demand)
        try:
            group, ready = await self._ray.create_group(name, bundles, demand.strategy, selectors)
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
                self._has(demand, Reserved(group, [str(node) for node in where], _bundle(demand)), names)
        except (ActorLost, ActorUnreachable) as error:
            _LOG.warning("%s: its placement group is gone, and is asked for again: %s", demand.run, error)
        finally:
            if not got:
                self.remove(group)
        if not got:
            # A node has come or gone this instant: it is seen before it is asked for again.
            await asyncio.sleep(RETRY_S)

    async def _moved(self, demand: Demand) -> bool:
        """Have another place for one whose node is gone, where Ray puts the bundles that were there.

        False where that is no place for it: the node is still there, or they were put where the group is already.
        """
        run, _, other = demand.run.partition(SEPARATOR)
        whole = self.reserved.get(run)
        while other.startswith(PREFIX) and whole is not None:
            names = [self.name_of(node) for node in whole.bundles]
            gone = [index for index, name in enumerate(names) if name not in self._cluster.nodes]
            if len(gone) < demand.num_workers:
                if not any(map(self._is_suspect, names)):
                    return False
                await asyncio.sleep(RETRY_S)
                continue
            where = await self._ray.bundles(whole.group)
            on = {index: self.name_of(node) for index in gone if (node := where[index]) is not None}
            there = {index: name for index, name in on.items() if name in self._cluster.nodes}
            for name, count in Counter(there.values()).items():
                if count >= demand.num_workers and name not in {*demand.excluded, *self._cluster.leaving}:
                    self._lend(demand, whole, [index for index in there if there[index] == name], str(name))
                    return True
            if len(there) == len(gone):
                return False
            await asyncio.sleep(RETRY_S)
        return False

    def _lend(self, demand: Demand, whole: Reserved, moved: list[int], name: str) -> None:
        number = self._cluster.nodes[name].id
        moved = moved[: demand.num_workers]
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

    def _selectors(self, demand: Demand) -> list[dict[str, str]]:
        """Return what each bundle's node has to be, in Ray's words: as the job says, and none of those excluded."""
        given = demand.selectors if len(demand.selectors) != 1 else demand.selectors * demand.num_workers
        each = [self._selector(one, demand.excluded) for one in given[: demand.num_workers]]
        each = each or [self._selector({}, demand.excluded)] * demand.num_workers
        return each if any(each) else []

    def _selector(self, given: Mapping[str, str], excluded: Sequence[str]) -> dict[str, str]:
        off = [node.id for name in excluded if (node := self._ever.get(name)) is not None]
        if NODE_LABEL not in given:
            return {**given, NODE_ID_LABEL: f"!in({','.join(off)})"} if off else dict(given)
        # Ray does not know what we call its nodes.
        rest = {name: value for name, value in given.items() if name != NODE_LABEL}
        meant = {NODE_LABEL: given[NODE_LABEL]}
        ids = [node.id for name, node in self._ever.items() if fits(meant, {NODE_LABEL: name}) and node.id not in off]
        return {**rest, NODE_ID_LABEL: f"in({','.join(ids)})"}

    def remove(self, group: Group) -> None:
        """Give a placement group back; `close` waits for it."""
        task = asyncio.create_task(self._ray.remove_group(group), name=f"give back {group.name}")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def close(self) -> None:
        """Wait until what was given back is given back, if the cluster answers at all."""
        if self._removing:
            await asyncio.wait(self._removing, timeout=CLOSE_TIMEOUT_S)


def _bundle(demand: Demand) -> Mapping[str, float]:
    """Return what one rank reserves."""
    wanted = {name: amount for name, amount in demand.resources.items() if amount > 0}
    if demand.accelerator_type is not None:
        wanted[f"{ACCELERATOR}{demand.accelerator_type}"] = ACCELERATOR_SHARE
    return wanted or NOTHING


def _as_slots(demand: Demand) -> Demand:
    return Demand(
        run=demand.run,
        attempt=demand.attempt,
        num_workers=demand.num_workers,
        resources=dict(_bundle(demand)),
        priority=demand.priority,
        accepted_at=demand.accepted_at,
        strategy=demand.strategy,
        excluded=demand.excluded,
        selectors=demand.selectors,
    )


def _cpus(demand: Demand) -> int:
    return -int(-demand.resources.get("CPU", 0) * demand.num_workers // 1)
