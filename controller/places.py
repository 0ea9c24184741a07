"""Places of a group that has failed: which of them the next attempt keeps, and which have to be found anew.

All ranks begin again, since their collectives are broken; runners on places that are sound are kept, and start them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.controller.elastic import keeps_its_size
from runfold.controller.elsewhere import is_left
from runfold.controller.replicas import size_of
from runfold.controller.words import because, listed
from runfold.events.base import relative
from runfold.events.edges import state_name
from runfold.events.failures import FAILURE_KINDS, NO_OTHER_PLACE, ErrorInfo, Failure
from runfold.events.transitions import StateChanged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.base import Cause
    from runfold.events.failures import FailureKind
    from runfold.events.state import Group, Place, RunState

MENDED: Final = "places:mended"
"""What deciders call it in the log; those that did not, gave all places back as soon as one of them was gone."""


def kept_without(state: RunState, failure: Failure, wait_s: float) -> tuple[int, ...] | None:
    """Return which places, by number, the next attempt has to do without, keeping the others; None: it keeps none.

    Those that another is looked for already are not named again.
    """
    group = state.group
    if group is None or not group.places or group.released:
        return None
    platform = FAILURE_KINDS[failure.kind].platform
    if not _mends(state):
        sound = all(place.healthy and not _is_unwanted(state, place) for place in group.places)
        return () if sound and not platform and wait_s <= 0 else None
    gone = _gone(state, group, failure)
    if gone or looked_for(group):
        kept = len(group.places) - len(gone) - len(looked_for(group))
        return gone if kept > 0 and wait_s <= state.job.timeouts.start_timeout_s else None
    if platform:
        # What is to blame is not known, or has turned out to stay.
        return () if failure.kind == "preempted" and wait_s <= state.job.timeouts.start_timeout_s else None
    return () if wait_s <= 0 and all(place.healthy for place in group.places) else None


def _mends(state: RunState) -> bool:
    """Whether single places can be found anew: not those of replica groups and slices, nor where each rank has its own.

    Replica groups have a way of their own; a slice is had whole; of ranks with selectors of their own nobody says which
    have to stand on another place.
    """
    scaling = state.job.scaling
    own = isinstance(scaling.label_selector, list) and len(scaling.label_selector) > 1
    return MENDED in state.decider.policies and size_of(state) is None and scaling.slice is None and not own


def _gone(state: RunState, group: Group, failure: Failure) -> tuple[int, ...]:
    """Return which places are to be given up; where one is, or is over, all on nodes that will be taken back are.

    Nobody works while another place is looked for: a node that will go would be of no use by then.
    """
    here = [(i, place) for i, place in enumerate(group.places) if place.left is None]
    gone = {i for i, place in here if _is_gone(state, place, failure)}
    if gone or looked_for(group) or _is_over(state):
        gone |= {i for i, place in here if place.node in _noticed(state)}
    return tuple(sorted(gone))


def _noticed(state: RunState) -> tuple[str, ...]:
    return state.notice.nodes if state.notice is not None else ()


def _is_over(state: RunState) -> bool:
    """Whether the nodes of a notice are taken back by now."""
    return state.notice is not None and state.notice.deadline_t <= state.t


def _is_unwanted(state: RunState, place: Place) -> bool:
    return place.node in state.excluded or is_left(state, place)


def _is_gone(state: RunState, place: Place, failure: Failure) -> bool:
    taken = _noticed(state) if failure.kind == "preempted" else ()
    late = failure.kind == "start_timeout" and place.ready is None
    return place.lost or late or place.node in taken or _is_unwanted(state, place)


def looked_for(group: Group) -> tuple[str, ...]:
    """Return the nodes that the group has lost its places on while others are looked for."""
    return tuple(place.node for place in group.places if place.left is not None)


def waits_on_places(state: RunState, gone: tuple[int, ...] | None, wait_s: float) -> bool | None:
    """Whether runners stay on their places until the next attempt begins; None where it begins at once, or on others.

    `gone` is what `kept_without` says. It is decided once: a runner that was told to leave is not there to be kept.
    """
    if gone is None or not keeps_its_size(state):
        return None
    return True if gone or wait_s > 0 or (state.group is not None and looked_for(state.group)) else None


def leave_before_work(state: RunState, group: Group) -> StateChanged | None:
    """Return the change by which a group without ranks gives up places on nodes that will be taken back; None: none.

    It costs nothing, since nobody works. Where such places are there still, and no others can be had, they are used.
    """
    notice = state.notice
    here = [place for place in group.places if place.left is None and place.node in _noticed(state)]
    if notice is None or not here or not _mends(state):
        return None
    if not looked_for(group) and not _is_over(state) and not any(is_left(state, place) for place in here):
        return None
    nodes = listed([place.node for place in here])
    message = f"{nodes} will be taken back{because(notice.reason)}, and no rank is at work there"
    failure = _unspent(state, "preempted", message, here[0].node, notice.cause)
    gone = kept_without(state, failure, 0.0)
    kept = waits_on_places(state, gone, 0.0)
    what_now = what_is_kept(state, gone or (), 0.0) if kept else "all places are given back, and asked for anew"
    # What else is about to go is known before all are placed anew.
    not_before_t = state.t if kept else max(state.t, notice.noticed_t + state.job.timeouts.coalesce_s)
    return StateChanged(
        from_state=state_name(state.phase),
        to_state="rescheduling",
        failure=failure,
        not_before_t=not_before_t,
        kept=kept,
        cause=relative(notice.cause, state.n),
        reason=f"{message}: nothing is spent; {what_now}",
    )


def _unspent(state: RunState, kind: FailureKind, message: str, node: str, cause: Cause) -> Failure:
    """Return why a group begins again that has not failed: no budget pays for it."""
    error = ErrorInfo(type="Preempted" if kind == "preempted" else NO_OTHER_PLACE, message=message, kind=kind)
    return Failure(kind=kind, attempt=state.attempt, node=node, error=error, t=state.t, cause=cause)


def give_back(state: RunState, failure: Failure | None, why: str) -> StateChanged:
    """Return the change by which a group gives back the places that it has kept, and queues anew."""
    fired = state.fired[0].cause if state.fired else state.phase.cause
    return StateChanged(
        from_state=state_name(state.phase),
        to_state="rescheduling",
        failure=failure or _unspent(state, "placement", why, "", fired),
        not_before_t=state.t,
        kept=False,
        cause=relative(fired, state.n),
        reason=f"{why}: the places that were kept are given back, and all are asked for anew",
    )


def not_to_be_had(state: RunState, group: Group) -> str:
    """Say that the place which the group waits for was not to be had alone."""
    nodes, limit_s = listed(list(looked_for(group))), state.job.timeouts.start_timeout_s
    if state.t < state.phase.since_t + limit_s:
        return f"no node of the pool could have another place for {nodes}, and there is room for all elsewhere"
    others = "others wait, or all have room elsewhere"
    return f"no other place for {nodes} within timeouts.start_timeout_s ({limit_s:g} s), while {others}"


# --- in words


def what_is_kept(state: RunState, gone: Iterable[int], wait_s: float) -> str:
    """Say that the next attempt keeps its places, and which it does not."""
    when = f" in {wait_s:g} s at the earliest" if wait_s > 0 else ""
    group = state.group
    nodes = [group.places[i].node for i in gone] if group is not None else []
    nodes += looked_for(group) if group is not None else ()
    if not nodes:
        return f"restarting on the same places{when}"
    places, others = ("its place", "another is") if len(nodes) == 1 else ("their places", "others are")
    return f"restarting on the same places{when}; {listed(nodes)} lost {places}, and {others} looked for"
