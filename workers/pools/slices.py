"""Reserving whole TPU slices: the head of each first, then one placement over all of them; all or nothing. Pure.

Which slice a head stands in is known only once it is reserved. The others of the slice are then asked for by its name.
`reserving` says what to do next, given what was done and what has come of it.
"""

from __future__ import annotations

from typing import Final, Literal

from runfold.events.base import Value
from runfold.events.slices import slices_for

HEAD_RESOURCE: Final = "TPU-{type}-{topology}-head"
"""What the first host of a multi-host slice has one of."""
SLICE_LABEL: Final = "ray.io/tpu-slice-name"


class SliceDemand(Value, frozen=True, kw_only=True):
    """So many ranks in whole slices of `workers_per_slice`; their heads have until `deadline_s` to be had."""

    num_workers: int
    workers_per_slice: int
    multi_host: bool
    deadline_s: float

    @property
    def slices(self) -> int:
        """How many slices that is."""
        return slices_for(self.num_workers, self.workers_per_slice)


class Reserved(Value, frozen=True, kw_only=True):
    """What has come of it so far.

    `names` are those of the slices whose heads are reserved, in order; `asked`: the next head is asked for. `placed` is
    the state of the placement over all of them. `error`: what went wrong, in words. `held`: something is reserved.
    """

    names: tuple[str, ...] = ()
    asked: bool = False
    placed: Literal["no", "asked", "yes"] = "no"
    error: str | None = None
    held: bool = False


class AskHead(Value, frozen=True, kw_only=True):
    """Reserve the head of slice `number`."""

    number: int


class Place(Value, frozen=True, kw_only=True):
    """Ask for one placement group: a bundle each, on nodes with these labels."""

    selectors: tuple[dict[str, str], ...]


class Wait(Value, frozen=True, kw_only=True):
    """Wait for what was asked for, at most until `until_s`; None: for as long as it takes."""

    until_s: float | None


class Release(Value, frozen=True, kw_only=True):
    """Give back everything that is reserved."""


class Fail(Value, frozen=True, kw_only=True):
    """It cannot be had now: `timeout` is the time that was over, `failed` anything else; both may be tried again."""

    kind: Literal["timeout", "failed"]
    reason: str


class Done(Value, frozen=True, kw_only=True):
    """Every rank has its place."""


Step = AskHead | Place | Wait | Release | Fail | Done


def head_resource(accelerator_type: str, topology: str) -> str:
    """Return the resource that the first host of a slice has."""
    kind = accelerator_type.lower().removeprefix("tpu-")
    return HEAD_RESOURCE.format(type=kind, topology=topology.lower())


def reserving(demand: SliceDemand, here: Reserved, now: float) -> Step:
    """Return what to do next about a group in slices."""
    if here.error is not None:
        return Release() if here.held else Fail(kind="failed", reason=f"the slices were not reserved: {here.error}")
    if here.placed == "yes":
        return Done()
    missing = demand.slices - len(here.names) if demand.multi_host else 0
    if missing <= 0:
        return Wait(until_s=None) if here.placed == "asked" else Place(selectors=_selectors(demand, here.names))
    if now >= demand.deadline_s:
        if here.held:
            return Release()
        have = f"{len(here.names)} of {demand.slices} slices had a head in time"
        return Fail(kind="timeout", reason=f"{have}: the others are in use, or not there")
    return Wait(until_s=demand.deadline_s) if here.asked else AskHead(number=len(here.names))


def _selectors(demand: SliceDemand, names: tuple[str, ...]) -> tuple[dict[str, str], ...]:
    """Return the labels of each rank's node: slice after slice, every rank of one on hosts of the same."""
    if not demand.multi_host:
        return tuple({} for _ in range(demand.num_workers))
    return tuple({SLICE_LABEL: names[rank // demand.workers_per_slice]} for rank in range(demand.num_workers))
