"""Elasticity: what the pool said that it has room for, and the plan to run at another size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.base import Cause, Value, absolute
from runfold.events.edges import IllegalEdge, state_name

if TYPE_CHECKING:
    from runfold.events.base import Moment
    from runfold.events.facts import CapacityChanged
    from runfold.events.state import RunState
    from runfold.events.transitions import ResizeDropped, ResizePlanned


class Room(Value, frozen=True, kw_only=True):
    """What the pool said last: see `CapacityChanged`, whose fields these are."""

    cause: Cause
    whole: dict[str, int] | None = None
    room: dict[str, int] | None = None
    fits: int | None = None
    slices: int | None = None


class ResizePlan(Value, frozen=True, kw_only=True):
    """A resize that waits for a checkpoint: one of report `index` or later, until `deadline_t`. `n`: its entry."""

    num_workers: int
    deadline_t: float
    index: int
    cause: Cause
    n: int


class Elastic(Value, frozen=True, kw_only=True):
    """Where an elastic run is with its size.

    `dropped_t`: when a plan was dropped last, since sizes changed back. `asked`: the request that named a size last,
    granted at `asked_t`.
    """

    room: Room | None = None
    plan: ResizePlan | None = None
    dropped_t: float | None = None
    asked: Cause | None = None
    asked_t: float | None = None


def room_told(item: CapacityChanged, cause: Cause) -> Room:
    """Return the room that a pool tells of."""
    return Room(cause=cause, whole=item.whole, room=item.room, fits=item.fits, slices=item.slices)


def come_back(before: dict[str, int] | None, slots: dict[str, int]) -> tuple[str, ...]:
    """Return the nodes that were not there for a while: what was said of them before is not of these."""
    return tuple(node for node in slots if before is not None and node not in before)


def asked(elastic: Elastic, cause: Cause, t: float) -> Elastic:
    """Note that somebody asked for another size."""
    return replace(elastic, asked=cause, asked_t=t)


def planned(state: RunState, transition: ResizePlanned, at: Moment) -> RunState:
    """Take in the plan to resize; it ends with the state RUNNING, whatever follows."""
    if state_name(state.phase) != "running" or state.elastic.plan is not None:
        raise IllegalEdge(f"a resize cannot be planned while {state_name(state.phase)}, nor twice")
    plan = ResizePlan(
        num_workers=transition.num_workers,
        deadline_t=transition.deadline_t,
        index=transition.index,
        cause=absolute(transition.cause, at.n),
        n=at.n,
    )
    return replace(state, elastic=replace(state.elastic, plan=plan))


def dropped(state: RunState, transition: ResizeDropped, at: Moment) -> RunState:
    """Give a plan up."""
    if state.elastic.plan is None:
        raise IllegalEdge(f"no resize is planned that could be dropped: {transition.reason}")
    return replace(state, elastic=replace(state.elastic, plan=None, dropped_t=at.t))


def left_running(elastic: Elastic) -> Elastic:
    """Return what is left when the state changes: no plan."""
    return elastic if elastic.plan is None else replace(elastic, plan=None)
