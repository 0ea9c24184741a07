"""The variable by which a process sees the GPUs of its bundles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from runfold.workers.devices import VISIBLE, in_order
from runfold.workers.pools.ray.actor import gpus_here
from runfold.workers.pools.ray.library import Group, Ray


async def gpus_on(ray: Ray, group: Group, bundles: Sequence[int], gpus: float) -> dict[str, str]:
    """Return the variable that shows all GPUs of these bundles, each with so many; nothing where they have none."""
    if gpus <= 0:
        return {}
    asked = [ray.accelerators(gpus_here, group, bundle, gpus) for bundle in bundles]
    return {VISIBLE: in_order(one for ids in await asyncio.gather(*asked) for one in ids)}
