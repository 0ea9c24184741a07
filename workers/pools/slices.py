"""Reserving whole TPU slices: the head of each first, then one placement over all of them; all or nothing. Pure.

Which slice a head stands in is known only once it is reserved. The others of the slice are then asked for by its name.
`reserving` says what to do next, given what was done and what has come of it.
"""

from __future__ import annotations

from typing import Final, Literal

from runfold.events.base import Value
from runfold.events.slices import Slice, slices_for
from runfold.workers.tpus import TPU

SLICE_LABEL: Final = "ray.io/tpu-slice-name"
HOST_NUMBER_LABEL: Final = "ray.io/tpu-worker-id"
"""The number of a host within its slice."""
KIND_LABEL: Final = "ray.io/tpu-pod-type"
TOPOLOGY_LABEL: Final = "ray.io/tpu-topology"
FIRST_HOST: Final = "0"


class SliceDemand(Value, frozen=True, kw_only=True):
    """So many ranks in whole slices of `workers_per_slice`, all of it to be had by `deadline_s`.

    `avoid`: the slices that are known not to be whole, or not to be free.
    """

    num_workers: int
    workers_per_slice: int
    deadline_s: float
    avoid: tuple[str, ...] = ()

    @property
    def slices(self) -> int:
        """How many slices that is."""
        return slices_for(self.num_workers, self.workers_per_slice)


class Progress(Value, frozen=True, kw_only=True):
    """What has come of reserving a demand's slices so far.

    `names` are those of the slices whose heads are reserved, in order; `asked`: the next head is asked for, anywhere
    but in the slices `avoided`. `placed` is the state of the placement over all of them. `error`: what went wrong, in
    words. `held`: something is reserved.
    """

    names: tuple[str, ...] = ()
    asked: bool = False
    avoided: tuple[str, ...] = ()
    placed: Literal["no", "asked", "yes"] = "no"
    error: str | None = None
    held: bool = False


class AskHead(Value, frozen=True, kw_only=True):
    """Reserve the head of another slice than these, instead of what was asked for before."""

    number: int
    avoid: tuple[str, ...] = ()


class Place(Value, frozen=True, kw_only=True):
    """Ask for one placement group: a bundle each, on nodes with these labels."""

    selectors: tuple[dict[str, str], ...]


class Wait(Value, frozen=True, kw_only=True):
    """Wait for what was asked for, at most until `until_s`."""

    until_s: float


class Release(Value, frozen=True, kw_only=True):
    """Give back everything that is reserved."""


class Fail(Value, frozen=True, kw_only=True):
    """It cannot be had now: `late` is the time that was over, `failed` anything else; both may be tried again."""

    kind: Literal["late", "failed"]
    reason: str


class Done(Value, frozen=True, kw_only=True):
    """Every rank has its place."""


Step = AskHead | Place | Wait | Release | Fail | Done


def head_resource(kind: Slice) -> str:
    """Return the resource that the first host of a slice has one of."""
    return f"{TPU}-{kind.pod_type}-head"


def reserving(demand: SliceDemand, here: Progress, now: float) -> Step:
    """Return what to do next about a group in slices."""
    if here.placed == "yes" and here.error is None:
        return Done()
    if here.error is not None or now >= demand.deadline_s:
        return Release() if here.held else _failed(demand, here)
    if here.placed == "asked":
        return Wait(until_s=demand.deadline_s)
    if len(here.names) == demand.slices:
        return Place(selectors=_selectors(demand, here.names))
    avoid = tuple(sorted({*demand.avoid, *here.names}))
    if here.asked and here.avoided == avoid:
        return Wait(until_s=demand.deadline_s)
    return AskHead(number=len(here.names), avoid=avoid)


def _failed(demand: SliceDemand, here: Progress) -> Fail:
    if here.error is not None:
        return Fail(kind="failed", reason=f"the slices were not reserved: {here.error}")
    if len(here.names) == demand.slices:
        of = ", ".join(here.names)
        return Fail(
            kind="late", reason=f"not all hosts of {of} were to be had in time: others use them, or they are lost"
        )
    have = f"{len(here.names)} of {demand.slices} slices had a head in time"
    return Fail(kind="late", reason=f"{have}: the others are in use, or not there")


def _selectors(demand: SliceDemand, names: tuple[str, ...]) -> tuple[dict[str, str], ...]:
    """Return the labels of each rank's node: slice after slice, every rank of one on hosts of the same."""
    return tuple({SLICE_LABEL: names[rank // demand.workers_per_slice]} for rank in range(demand.num_workers))
