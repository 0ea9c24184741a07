"""Which TPU chips the ranks of a run have on a node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from runfold.workers.devices import in_order
from runfold.workers.pools.ray.library import Group, Ray, RayNode, own_chips
from runfold.workers.tpus import TPU, VISIBLE_CHIPS


async def chips_on(ray: Ray, group: Group, bundles: Sequence[int], tpus: float, node: RayNode) -> dict[str, str]:
    """Return the variable that names the chips of these bundles, each with so many of a node's.

    Nothing where each has all of them: then nothing need be hidden from its rank.
    """
    if tpus <= 0 or tpus >= node.resources.get(TPU, 0.0):
        return {}
    asked = [ray.accelerators(chips_here, group, bundle, 0, tpus) for bundle in bundles]
    return {VISIBLE_CHIPS: in_order(one for ids in await asyncio.gather(*asked) for one in ids)}


def chips_here() -> list[str]:
    """Return which chips a bundle has: run once in each, where ranks have a part of a host."""
    return own_chips()
