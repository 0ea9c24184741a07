"""Demands as a cluster knows them: what a rank reserves, and how the pool's own arithmetic sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from runfold.workers.pools.labels import NODE_LABEL, fits
from runfold.workers.pools.local import Demand, Slots
from runfold.workers.pools.ray.library import RayNode
from runfold.workers.pools.room import Room
from runfold.workers.tpus import TPU

ACCELERATOR: Final = "accelerator_type:"
ACCELERATOR_SHARE: Final = 0.001
"""How much a rank asks of the resource by which Ray knows a node's kind of accelerator."""
NOTHING: Final[Mapping[str, float]] = {"CPU": 0.001}
"""A bundle cannot be empty."""
NODE_ID_LABEL: Final = "ray.io/node-id"

CHIPS: Final = (1, 2, 4, 8)
"""So many TPU chips of a host Ray gives together."""

Nodes = Mapping[str, RayNode]
"""The nodes of a cluster, by name."""


def bad_amount(demand: Demand) -> str | None:
    """Return why Ray never gives so much of something; None if it does."""
    gpus, tpus = demand.resources.get("GPU", 0), demand.resources.get(TPU, 0)
    if gpus > 1 and gpus != int(gpus):
        return f"each rank needs {gpus:g} GPU: Ray gives one GPU in parts, and more than one only whole"
    if tpus and tpus not in CHIPS:
        return f"each rank needs {tpus:g} TPU: of a host Ray gives {', '.join(map(str, CHIPS))}, and no other number"
    return None


def bundle_of(demand: Demand) -> Mapping[str, float]:
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
        resources=dict(bundle_of(demand)),
        priority=demand.priority,
        accepted_at=demand.accepted_at,
        strategy=demand.strategy,
        excluded=demand.excluded,
        selectors=demand.selectors,
    )


def cpus_of(demand: Demand) -> int:
    """Return how many CPUs a demand needs, rounded up."""
    return -int(-demand.resources.get("CPU", 0) * demand.num_workers // 1)


def never_on(nodes: Nodes, demand: Demand) -> str | None:
    """Return why a demand could not be met by these nodes standing empty; None if it could."""
    labels = {name: node.labels for name, node in nodes.items()}
    return Slots({name: node.resources for name, node in nodes.items()}, labels).never(_as_slots(demand))


def room_on(nodes: Nodes, free: Mapping[str, Mapping[str, float]], demand: Demand) -> Room:
    """Return what there is room for on these nodes, of which so much is free."""
    alike, labels = _as_slots(demand), {name: node.labels for name, node in nodes.items()}
    whole = Slots({name: node.resources for name, node in nodes.items()}, labels).room(alike)
    now = Slots(free, labels).room(alike)
    room = {name: (now.room or {}).get(name, 0) for name in whole.whole or {}}
    return Room(slots=cpus_on(nodes), whole=whole.whole, room=room, fits=now.fits)


def cpus_on(nodes: Nodes) -> dict[str, int]:
    """Return the whole CPUs of each node."""
    return {name: int(node.resources.get("CPU", 0)) for name, node in nodes.items()}


def selectors_of(demand: Demand, ever: Nodes) -> list[dict[str, str]]:
    """Return what each bundle's node has to be, in Ray's words: as the job says, and none of those excluded."""
    given = demand.selectors if len(demand.selectors) != 1 else demand.selectors * demand.num_workers
    each = [_selector(one, demand.excluded, ever) for one in given[: demand.num_workers]]
    each = each or [_selector({}, demand.excluded, ever)] * demand.num_workers
    return each if any(each) else []


def _selector(given: Mapping[str, str], excluded: Sequence[str], ever: Nodes) -> dict[str, str]:
    off = [node.id for name in excluded if (node := ever.get(name)) is not None]
    if NODE_LABEL not in given:
        return {**given, NODE_ID_LABEL: f"!in({','.join(off)})"} if off else dict(given)
    # Ray does not know what we call its nodes.
    rest = {name: value for name, value in given.items() if name != NODE_LABEL}
    meant = {NODE_LABEL: given[NODE_LABEL]}
    ids = [node.id for name, node in ever.items() if fits(meant, {NODE_LABEL: name}) and node.id not in off]
    return {**rest, NODE_ID_LABEL: f"in({','.join(ids)})"}
