"""What places that a group keeps while it waits mean for the queue of its pool. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runfold.workers.pools.local import Demand, Waiting


def with_kept(
    waiting: Waiting,
    demand: Demand,
    queue: Iterable[Demand],
    waits_for_nodes: Callable[[Demand], bool],
    could_be: Callable[[Demand], bool],
) -> Waiting:
    """Return how a demand waits, with what that means for the places that its group keeps meanwhile.

    `waits_for_nodes`: whether the nodes that are there could not meet a demand, even empty. `could_be`: whether a
    group that keeps places could be placed whole now, on what it holds and what is free.
    """
    if demand.whole is None:
        return waiting
    others = (other for other in queue if other.holder != demand.holder)
    could = could_be(demand.whole)
    contested = could or not all(map(waits_for_nodes, others))
    return replace(waiting, contested=contested, hopeless=could and waits_for_nodes(demand))
