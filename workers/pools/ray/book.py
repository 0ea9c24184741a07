"""Who gets places on a Ray cluster: the first of the queue has a placement group asked for, and nobody overtakes it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from runfold.events.facts import PlaceOffer
from runfold.workers.pools.labels import nowhere
from runfold.workers.pools.local import Demand, Granted, Slots, Waiting
from runfold.workers.pools.ray.library import Group, Ray, RayNode, bad_selector
from runfold.workers.pools.room import Room

ACCELERATOR: Final = "accelerator_type:"
ACCELERATOR_SHARE: Final = 0.001
"""How much a rank asks of the resource by which Ray knows a node's kind of accelerator."""
NOTHING: Final[Mapping[str, float]] = {"CPU": 0.001}
"""A bundle cannot be empty."""
NODE_ID_LABEL: Final = "ray.io/node-id"
RETRY_S: Final = 1.0
_LOG: Final = logging.getLogger("runfold.workers")


class Reserved:
    """What a run holds: the placement group, and the node of each of its bundles."""

    def __init__(self, group: Group, bundles: list[str], demand: Demand | None = None) -> None:
        self.group = group
        self.bundles = bundles
        self.demand = demand

    def on(self, node: str) -> list[int]:
        """Return the bundles on a node (its id)."""
        return [index for index, where in enumerate(self.bundles) if where == node]


class RayBook:
    """The queue of a pool, and what its runs hold. `nodes_seen` are kept up by who watches the cluster."""

    def __init__(self, ray: Ray, prefix: str, suffix: str) -> None:
        self._ray = ray
        self._prefix, self._suffix = prefix, suffix
        self._waiting: dict[str, Demand] = {}
        self._granted: list[Granted] = []
        self._changed = asyncio.Event()
        self._removing: set[asyncio.Task[None]] = set()
        self._free_cpus = 0.0
        self._ever: dict[str, RayNode] = {}
        self._alive: dict[str, RayNode] = {}
        self.reserved: dict[str, Reserved] = {}
        self.on_change: Callable[[], None] = lambda: None

    # --- what the cluster has

    def see(self, nodes: list[RayNode], free_cpus: float) -> None:
        """Take what the cluster has now. A node that was there once may come again."""
        self._alive = {node.name: node for node in nodes if node.alive}
        self._ever.update(self._alive)
        self._free_cpus = free_cpus

    def node(self, name: str) -> RayNode | None:
        """Return a node by its name, alive or not."""
        return self._ever.get(name)

    def name_of(self, number: str) -> str | None:
        """Return how a node (its id) is called."""
        return next((node.name for node in self._ever.values() if node.id == number), None)

    @property
    def free(self) -> int:
        """Whole CPUs that nobody has reserved."""
        return int(self._free_cpus)

    @property
    def nodes(self) -> dict[str, int]:
        """Whole CPUs of each node that is there."""
        return {name: int(node.resources.get("CPU", 0)) for name, node in self._alive.items()}

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
        if (where := nowhere(demand.selectors, labels)) is not None:
            return where
        whole = Slots({name: node.resources for name, node in self._ever.items()}, labels)
        return whole.never(_as_slots(demand))

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
        self._granted = [granted for granted in self._granted if granted.demand.run != run]
        if (held := self.reserved.pop(run, None)) is not None:
            self.remove(held.group)
        self._changed.set()

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

    def room(self, demand: Demand) -> Room:
        """Return what the nodes that are there have room for, less what other runs have reserved on them.

        Nothing that is no run of this pool is known of.
        """
        slots = Slots(
            {name: node.resources for name, node in self._alive.items()},
            {name: node.labels for name, node in self._alive.items()},
        )
        for run, held in self.reserved.items():
            if run == demand.run or held.demand is None:
                continue
            for name, count in Counter(filter(None, map(self.name_of, held.bundles))).items():
                slots.hold(_as_slots(held.demand), PlaceOffer(node=name, slots=count))
        for waiting in self._waiting.values():
            if waiting.run != demand.run:
                slots.ask(_as_slots(waiting))
        return replace(slots.room(_as_slots(demand)), slots=self.nodes)

    def overdrawn(self) -> list[tuple[str, str]]:
        """Return nothing: what a cluster has not, it has not given."""
        return []

    def resize(self, node: str | None, slots: int) -> str | None:  # noqa: ARG002  # as every book's
        """Refuse: the cluster's capacity is its own."""
        return "its capacity is that of its Ray cluster: add or remove nodes there"

    def _queue(self) -> list[Demand]:
        return sorted(self._waiting.values(), key=lambda demand: demand.order)

    # --- placement groups

    async def reserve(self) -> None:
        """Reserve for the first of the queue, until cancelled."""
        while True:
            self._changed.clear()
            head = next(iter(self._queue()), None)
            # What its run holds from before is given back first.
            if head is None or head.run in self.reserved:
                await self._changed.wait()
                continue
            group, ready = await self._ray.create_group(
                f"{self._prefix}{head.run}-{head.attempt}-{secrets.token_hex(2)}{self._suffix}",
                [_bundle(head)] * head.num_workers,
                head.strategy,
                self._selectors(head),
            )
            got = False
            try:
                got = await self._got(head, group, asyncio.ensure_future(ready))
            finally:
                if not got:
                    self.remove(group)

    async def _got(self, head: Demand, group: Group, ready: asyncio.Future[object]) -> bool:
        """Wait until the group is reserved, or somebody else is first in the queue; whether its run has it."""
        ready.add_done_callback(lambda _: self._changed.set())
        try:
            while not ready.done() and self._is_first(head):
                self._changed.clear()
                await self._changed.wait()
            if not self._is_first(head):
                return False
            ready.result()
            where = await self._ray.bundles(group)
        finally:
            ready.cancel()
        if None in where or not self._is_first(head):
            # A node has gone meanwhile: Ray looks for another one, and so do we.
            await asyncio.sleep(RETRY_S)
            return False
        held = Reserved(group, [str(node) for node in where], head)
        names = [self.name_of(node) for node in held.bundles]
        if None in names:
            await asyncio.sleep(RETRY_S)
            return False
        del self._waiting[head.run]
        self.reserved[head.run] = held
        places = tuple(PlaceOffer(node=str(node), slots=slots) for node, slots in Counter(names).items())
        self._granted.append(Granted(demand=head, places=places))
        self.on_change()
        return True

    def _is_first(self, demand: Demand) -> bool:
        return next(iter(self._queue()), None) == demand

    def _selectors(self, demand: Demand) -> list[dict[str, str]]:
        """Return what each bundle's node has to be: as the job says, and none of those excluded."""
        excluded = [node.id for name in demand.excluded if (node := self._ever.get(name)) is not None]
        off = {NODE_ID_LABEL: f"!in({','.join(excluded)})"} if excluded else {}
        given = demand.selectors if len(demand.selectors) != 1 else demand.selectors * demand.num_workers
        each = [{**one, **off} for one in given[: demand.num_workers]] or [off] * demand.num_workers
        return each if any(each) else []

    def remove(self, group: Group) -> None:
        """Give a placement group back; `close` waits for it."""
        task = asyncio.create_task(self._ray.remove_group(group), name=f"give back {group.name}")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def close(self) -> None:
        """Wait until what was given back is given back."""
        await asyncio.gather(*self._removing, return_exceptions=True)


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
