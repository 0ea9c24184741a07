"""What a rank's environment says of its TPU chips, and of the slices of its group. Pure.

A rank that has all chips of its host is told nothing of them: then the library finds them by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runfold.events.slices import Slice, slices_for
from runfold.workers.devices import gpus_by_slot

TPU: Final = "TPU"
VISIBLE_CHIPS: Final = "TPU_VISIBLE_CHIPS"
CHIPS_BOUNDS: Final = "TPU_CHIPS_PER_HOST_BOUNDS"
HOST_BOUNDS: Final = "TPU_HOST_BOUNDS"
ONE_HOST: Final = "1,1,1"
BOUNDS: Final[Mapping[int, str]] = {1: "1,1,1", 2: "1,2,1"}
"""How so many chips of a host lie. Other parts of a host have no bounds of their own."""

POD_NAME: Final = "TPU_NAME"
POD_HOST: Final = "TPU_WORKER_ID"
"""By these a node says which slice it is in, and as which of its hosts, where nobody else does."""

PORT: Final = 8081
"""Where several slices are coordinated: for the first rank of a node; the next ones have the next ports."""


def pod_said(resources: Mapping[str, float], told: tuple[str, int], variables: Mapping[str, str]) -> tuple[str, int]:
    """Return the slice of a node and the number of its host there, for ranks that have TPUs: as the pool told it.

    Where it did not, by the node's own variables; no name for none.
    """
    if resources.get(TPU, 0) <= 0:
        return "", 0
    number = variables.get(POD_HOST, "")
    by_itself = variables.get(POD_NAME, ""), int(number) if number.isascii() and number.isdecimal() else 0
    return told if told[0] else by_itself


def chips_environment(chips: str | None, slots: int, slot: int) -> dict[str, str]:
    """Return the variables by which the rank of a slot sees its chips alone, of those that its node's slots have."""
    by_slot = gpus_by_slot(chips, slots)
    own = by_slot[slot] if slot < len(by_slot) else ()
    if not own:
        return {}
    seen = {VISIBLE_CHIPS: ",".join(own)}
    return {**seen, CHIPS_BOUNDS: BOUNDS[len(own)], HOST_BOUNDS: ONE_HOST} if len(own) in BOUNDS else seen


def port_environment(kind: Slice | None, tpus: float, ranks: int, local_rank: int) -> dict[str, str]:
    """Return where a rank's part of the coordination of several slices listens, unless its user says otherwise."""
    return {"MEGASCALE_PORT": str(PORT + local_rank)} if _count(kind, tpus, ranks) > 1 else {}


def slices_environment(kind: Slice | None, tpus: float, ranks: int, index: int, addr: str) -> dict[str, str]:
    """Return which of how many slices the rank with this number is on, and where the first one's host is.

    `tpus` is what each of the `ranks` has; `addr` where the first of them is reached.
    """
    count = _count(kind, tpus, ranks)
    if kind is None or count <= 1:
        return {}
    host = f"[{addr}]" if ":" in addr else addr
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": f"{host}:{PORT}",
        "MEGASCALE_NUM_SLICES": str(count),
        "MEGASCALE_SLICE_ID": str(min(index // kind.workers(tpus), count - 1)),
    }


def _count(kind: Slice | None, tpus: float, ranks: int) -> int:
    return 1 if kind is None else slices_for(ranks, kind.workers(tpus))
