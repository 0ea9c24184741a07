"""Whether a group, or some of its places, could be had elsewhere, and what is done when they could not for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.elastic import away, fitting
from runfold.controller.words import listed
from runfold.events.failures import NO_OTHER_PLACE, ErrorInfo, Failure
from runfold.events.replicas import waits_for_place

if TYPE_CHECKING:
    from collections.abc import Collection

    from runfold.events.base import Cause
    from runfold.events.state import Group, Place, RunState


def has_room(state: RunState) -> bool:
    """Whether the pool has said that it has room for the group off the nodes that it stays off."""
    fits = fitting(state)
    return fits is not None and fits >= max(state.job.scaling.min_workers, 1)


def is_left(state: RunState, place: Place) -> bool:
    """Whether a place is given up at the next chance: its node is about to be taken back, and there are others."""
    return state.notice is not None and place.node in state.notice.nodes and has_room(state)


def can_mend(state: RunState, group: Group, leaving: Collection[int] = ()) -> bool:
    """Whether another place could be had for each that was left, and for those that would be, while the rest work on.

    A place is whole on one node, where no other runner of the run is: one speaks under the name of its node.
    """
    room = state.elastic.room.room if state.elastic.room is not None else None
    if room is None:
        return False
    left = {i for i, place in enumerate(group.places) if place.left is not None or i in leaving}
    off = away(state).union(place.node for i, place in enumerate(group.places) if i not in left or not place.lost)
    needed = sorted((group.places[i].slots for i in left), reverse=True)
    free = sorted((slots for node, slots in room.items() if node not in off), reverse=True)
    return len(free) >= len(needed) and all(has >= wants for has, wants in zip(free, needed, strict=False))


def stranded(state: RunState, group: Group) -> tuple[Failure, ...]:
    """Return the failure of groups that have waited for another place too long while the whole run would fit."""
    late = [str(one.group) for one in group.replicas if one.late and waits_for_place(group, one)]
    if not late or not has_room(state) or can_mend(state, group):
        return ()
    which = f"replica group{'s' if len(late) > 1 else ''} {listed(late)}"
    limit = f"timeouts.start_timeout_s ({state.job.timeouts.start_timeout_s:g} s)"
    message = f"no other place for {which} within {limit}, and the pool has room for the whole run"
    return (
        Failure(
            kind="placement",
            attempt=group.attempt,
            node="",
            error=ErrorInfo(type=NO_OTHER_PLACE, message=message, kind="placement"),
            t=state.t,
            cause=_news(state, group),
        ),
    )


def _news(state: RunState, group: Group) -> Cause:
    """Return what was told last: that the time is over, or that there is room."""
    told = (group.news, state.elastic.room.cause if state.elastic.room is not None else None)
    return max((one for one in told if one is not None), key=_order, default=state.phase.cause)


def _order(cause: Cause) -> tuple[int, int]:
    return (cause.entry or 0, cause.input or 0)
