"""Which GPUs a rank sees, and which of them is its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def visible_gpus(own: Mapping[int, Sequence[str] | None], node_of: Mapping[int, str], *, share: bool) -> dict[int, str]:
    """Return CUDA_VISIBLE_DEVICES of each rank that asked for a GPU.

    `own` holds the ids that the pool gave each rank, `node_of` the node it is on. With `share` every rank sees those of
    all ranks on its node, so that libraries can copy from one to the other; sorted as they are given, as words.

    Raises `ValueError` when a rank was given none although it asked for one.
    """
    for rank, ids in own.items():
        if ids is None:
            raise ValueError(f"rank {rank} on node {node_of[rank]} was given no GPU, and its group asks for GPUs")
    seen: dict[str, set[str]] = {}
    for rank, ids in own.items():
        seen.setdefault(node_of[rank], set()).update(ids or ())
    return {rank: ",".join(sorted(seen[node_of[rank]] if share else set(ids or ()))) for rank, ids in own.items()}


def in_order(ids: Iterable[str]) -> str:
    """Return ids, each once, as a variable names them: numbers by their size, before whatever else there is."""
    return ",".join(sorted(set(ids), key=lambda one: (not one.isdecimal(), len(one), one)))


def gpus_by_slot(visible: str | None, slots: int) -> tuple[tuple[str, ...], ...]:
    """Return the GPUs of each slot of a place that was given these: as many for each; none where they do not go up."""
    ids = [one.strip() for one in (visible or "").split(",") if one.strip()]
    each = len(ids) // slots if slots else 0
    if not each or each * slots != len(ids):
        return ()
    return tuple(tuple(ids[k * each : (k + 1) * each]) for k in range(slots))


def device_index(own: Sequence[str], local_rank: int, visible: str | None) -> int:
    """Return the number by which CUDA knows a rank's own GPU: its place among those that are visible.

    A rank that was given none by its pool takes the one of its local rank.
    """
    if not own:
        return local_rank
    ids = [one.strip() for one in (visible or "").split(",")]
    return ids.index(own[0]) if own[0] in ids else local_rank
