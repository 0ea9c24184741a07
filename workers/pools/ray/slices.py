"""TPU slices among the nodes of a cluster: which are whole, which are free, and where a node stands in its. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from runfold.events.slices import Slice, pod_order, slice_of, slices_for
from runfold.workers.pools.local import Demand, Slots
from runfold.workers.pools.ray.demands import Nodes, cpus_on
from runfold.workers.pools.ray.library import RayNode
from runfold.workers.pools.room import Room
from runfold.workers.pools.slices import (
    FIRST_HOST,
    HOST_NUMBER_LABEL,
    KIND_LABEL,
    SLICE_LABEL,
    TOPOLOGY_LABEL,
    head_resource,
)
from runfold.workers.tpus import TPU

Free = Mapping[str, Mapping[str, float]]
"""What each node has free for a run: what it holds itself is free for it."""


def in_rays_words(demand: Demand) -> Demand:
    """Return a demand for TPUs as a cluster knows them: nodes of a kind by its label, and kinds by Ray's names."""
    if TPU not in demand.resources or demand.accelerator_type is None:
        return demand
    if demand.slice is None:
        return replace(demand, accelerator_type=_rays_kind(demand.accelerator_type))
    if demand.slice.hosts > 1:
        return replace(demand, accelerator_type=None)
    alike = {KIND_LABEL: demand.slice.pod_type}
    return replace(
        demand, accelerator_type=None, selectors=tuple({**one, **alike} for one in demand.selectors or ({},))
    )


def _rays_kind(name: str) -> str:
    try:
        return f"{TPU}-{slice_of('1x1', name).generation.upper()}"
    except ValueError:
        return name


def slices_of(demand: Demand) -> Slice | None:
    """Return the kind of slices, of several hosts each, that a demand's ranks come in; None where they do not."""
    return demand.slice if demand.slice is not None and demand.slice.hosts > 1 else None


def workers_per_slice(demand: Demand, kind: Slice) -> int:
    """Return how many of its ranks fill a slice."""
    return kind.workers(demand.resources.get(TPU, 0.0))


def pod_of(node: RayNode) -> tuple[str, int]:
    """Return the slice that a node is in, and its number there; no name where it is in none."""
    number = node.labels.get(HOST_NUMBER_LABEL, "")
    return node.labels.get(SLICE_LABEL, ""), int(number) if number.isdecimal() else 0


def heads_on(node: RayNode) -> dict[str, float]:
    """Return the resources by which a node is the first of a slice."""
    return {
        name: amount for name, amount in node.resources.items() if name.startswith(f"{TPU}-") and name.endswith("-head")
    }


def mates(nodes: Nodes, name: str) -> tuple[str, ...]:
    """Return the other nodes that are in the same slice as one: they go together."""
    pod = pod_of(nodes[name])[0]
    return tuple(other for other, node in nodes.items() if other != name and pod and pod_of(node)[0] == pod)


def whole(nodes: Nodes, kind: Slice) -> dict[str, tuple[str, ...]]:
    """Return the slices of a kind all of whose chips are there, by name: their hosts, in their order."""
    found: dict[str, dict[str, RayNode]] = {}
    for node in nodes.values():
        name, number = node.labels.get(SLICE_LABEL, ""), node.labels.get(HOST_NUMBER_LABEL, node.name)
        topology = node.labels.get(TOPOLOGY_LABEL, kind.topology)
        if name and node.labels.get(KIND_LABEL) == kind.pod_type and topology == kind.topology:
            # A host that has come again stands for the one that was there.
            found.setdefault(name, {})[number] = node
    return {
        name: pod_order([(name, pod_of(node)[1], node.name) for node in hosts.values()])
        for name, hosts in sorted(found.items())
        if FIRST_HOST in hosts and sum(node.resources.get(TPU, 0.0) for node in hosts.values()) == kind.chips
    }


def free(nodes: Nodes, left: Free, kind: Slice, off: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return the slices of which nothing is used by others, and that have no host to stay off."""
    avoided, head = frozenset(off), head_resource(kind)
    return {
        name: hosts
        for name, hosts in whole(nodes, kind).items()
        if not avoided.intersection(hosts)
        and left.get(hosts[0], {}).get(head, 0.0) >= 1
        and all(left.get(host, {}).get(TPU, 0.0) >= nodes[host].resources.get(TPU, 0.0) for host in hosts)
    }


def avoided(nodes: Nodes, left: Free, kind: Slice, off: Iterable[str]) -> tuple[str, ...]:
    """Return the slices whose heads are not asked for: they would stand there without their others, or in vain."""
    usable = free(nodes, left, kind, off)
    return tuple(sorted({name for node in nodes.values() if (name := pod_of(node)[0]) and name not in usable}))


def room_in_slices(demand: Demand, kind: Slice, nodes: Nodes, left: Free) -> Room:
    """Return what there is room for in slices; those with a host that the run stays off are counted by node alone."""
    intact, usable = whole(nodes, kind), free(nodes, left, kind)
    hosts = [host for of in intact.values() for host in of]
    now = [host for of in usable.values() for host in of]
    most = Slots({host: nodes[host].resources for host in hosts}).room(demand)
    room = Slots({host: left.get(host, {}) for host in now}).room(demand)
    here = {**dict.fromkeys(hosts, 0), **(room.room or {})}
    off = frozenset(demand.excluded)
    # With a host that the run stays off, its others are of no use to it either.
    lost = {host: 0 for of in intact.values() if off.intersection(of) for host in of if host not in off}
    count = len(free(nodes, left, kind, off))
    return Room(slots=cpus_on(nodes), whole={**(most.whole or {}), **lost}, room=here, fits=room.fits, slices=count)


def waiting_words(demand: Demand, kind: Slice, free_count: int) -> str:
    """Return what a demand in slices waits for, in words."""
    needed = slices_for(demand.num_workers, workers_per_slice(demand, kind))
    called = f"whole slice{'s' if needed != 1 else ''} of {kind.generation} {kind.topology}"
    return f"{needed} {called} needed, {free_count} free"


def never_in_slices(demand: Demand, kind: Slice, nodes: Nodes) -> str | None:
    """Return why a demand in slices could not be met by these nodes standing empty; None if it could."""
    had, each = whole(nodes, kind), workers_per_slice(demand, kind)
    needed = slices_for(demand.num_workers, each)
    called = f"slice{'s' if needed != 1 else ''} of {kind.generation} {kind.topology}"
    if len(had) < needed:
        return (
            f"{demand.num_workers} ranks need {needed} whole {called} (nodes with the label {KIND_LABEL}="
            f"{kind.pod_type}, {kind.chips} TPU in all), and this cluster has had {len(had)}"
        )
    hosts = [host for of in had.values() for host in of]
    return Slots({host: nodes[host].resources for host in hosts}).never(demand)
