"""Preemption notices: several are one, with all their nodes and the earliest deadline; and what is left of one.

A supervisor that begins anew has the nodes that it says it has. What the one before said of them ends with the group
that it was said to, so that none is stayed off for ever which is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from runfold.events.limits import AWAY_MAX_COUNT, PREEMPTION_WITHIN_MAX_S, PREEMPTION_WITHIN_S
from runfold.events.marks import Notice
from runfold.events.state import Rescheduling, Resizing, Restarting

if TYPE_CHECKING:
    from collections.abc import Collection

    from runfold.events.base import Cause
    from runfold.events.state import RunState

ENDS_WITH_SUPERVISOR: Final = "notices:end-with-supervisor"
"""What deciders call it in the log; for those that did not, a notice in force outlived the supervisor that gave it."""


def noticed(
    held: Notice | None,
    nodes: tuple[str, ...],
    within_s: float | None,
    *,
    t: float,
    cause: Cause,
    reason: str,
    asked: bool = False,
) -> Notice:
    """Return the notice in force after another one came at `t`, from somebody who `asked` or from the pool."""
    new = Notice(
        nodes=tuple(sorted(taken_back((), tuple(sorted(set(nodes)))))),
        # A time is told in whole milliseconds: one that no clock will ever show cannot be.
        deadline_t=t + (PREEMPTION_WITHIN_S if within_s is None else min(max(within_s, 0.0), PREEMPTION_WITHIN_MAX_S)),
        noticed_t=t,
        cause=cause,
        reason=reason,
        unknown=within_s is None,
        asked=tuple(sorted(set(nodes))) if asked else (),
    )
    if held is None:
        return new
    first = min(held, new, key=lambda notice: (notice.deadline_t, notice.noticed_t, notice.reason))
    return replace(
        first,
        nodes=tuple(sorted(taken_back(held.nodes, new.nodes))),
        noticed_t=min(held.noticed_t, new.noticed_t),
        asked=tuple(sorted(taken_back(held.asked, new.asked))),
        former=without(held.former, new.nodes),
    )


def cancelled(held: Notice | None, nodes: tuple[str, ...]) -> Notice | None:
    """Return what is left of a notice when these nodes stay after all."""
    if held is None:
        return None
    if not (left := without(held.nodes, nodes)):
        return None
    return replace(held, nodes=left, asked=without(held.asked, nodes), former=without(held.former, nodes))


# --- nodes that were taken back


def taken_back(away: tuple[str, ...], nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes to stay off, the newest last, with these among them."""
    rest = tuple(node for node in away if node not in nodes)
    return (*rest, *nodes)[-AWAY_MAX_COUNT:]


def without(away: tuple[str, ...], nodes: Collection[str]) -> tuple[str, ...]:
    """Return the nodes to stay off without these: they stay after all, or have come back."""
    return tuple(node for node in away if node not in nodes)


# --- a supervisor that begins anew


def after_join(state: RunState) -> Notice | None:
    """Return what is left of the notice when another supervisor of the pool has joined.

    Where the group holds its places still, it saves and leaves them as it was told; else there is nothing to leave.
    """
    notice, group, phase = state.notice, state.group, state.phase
    if notice is None or ENDS_WITH_SUPERVISOR not in state.decider.policies:
        return notice
    leaves = isinstance(phase, Resizing) or (isinstance(phase, Restarting | Rescheduling) and not phase.kept)
    if leaves or group is None or not group.places or group.released:
        return None
    return replace(notice, former=notice.nodes)


def stayed_off(state: RunState, notice: Notice) -> tuple[str, ...]:
    """Return the nodes that groups after the present one stay off on account of a notice.

    Of those that the former supervisor's notice named, only one that somebody else spoke of, and that has not gone yet.
    """
    places = state.group.places if state.group is not None else ()
    alive = {place.node for place in places if not place.lost and place.left is None}
    return tuple(node for node in notice.nodes if node not in notice.former or (node in notice.asked and node in alive))
