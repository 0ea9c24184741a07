"""The variable by which a process sees the GPUs of its bundles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from runfold.workers.pools.ray.actor import gpus_here
from runfold.workers.pools.ray.library import Group, Ray


async def gpus_on(ray: Ray, group: Group, bundles: Sequence[int], gpus: float) -> dict[str, str]:
    """Return the variable that shows all GPUs of these bundles, each with so many; nothing where they have none."""
    if gpus <= 0:
        return {}
    asked = [ray.accelerators(gpus_here, group, bundle, gpus) for bundle in bundles]
    seen = {one for ids in await asyncio.gather(*asked) for one in ids}
    return {"CUDA_VISIBLE_DEVICES": ",".join(sorted(seen, key=lambda one: (not one.isdigit(), len(one), one)))}
