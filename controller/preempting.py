"""PREEMPTING: nodes will be taken back; ranks finish or save until the deadline."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.controller.effects import decidable
from runfold.controller.elsewhere import can_mend, has_room
from runfold.controller.failing import open_failures, reclaimed, saved
from runfold.controller.moves import change, fail, finished
from runfold.controller.replicas import bring_back, failing, size_of, too_late, vacated
from runfold.controller.words import because, listed
from runfold.events.assignment import NodesTaken
from runfold.events.base import relative
from runfold.events.beats import RankPhase
from runfold.events.counts import stay
from runfold.events.edges import state_name
from runfold.events.state import OVER, Preempting
from runfold.events.transitions import StateChanged

if TYPE_CHECKING:
    from runfold.controller.moves import Step
    from runfold.controller.policies import Policies
    from runfold.events.failures import Failure
    from runfold.events.state import Group, RunState


def taken(state: RunState, group: Group) -> tuple[str, ...]:
    """Return the nodes of the group that a notice in force names, as far as ranks on them are not done.

    Where every rank has returned there is nothing left to be lost, as when its runner goes.
    """
    done = OVER if not group.failures else frozenset[RankPhase](("returned",))
    busy = {rank.node for rank in group.ranks if rank.phase not in done}
    here = {place.node for place in group.places if place.left is None and place.node in busy}
    return tuple(node for node in state.notice.nodes if node in here) if state.notice is not None else ()


def taken_nodes(state: RunState) -> NodesTaken | None:
    """Return what the ranks are told of nodes that will be taken back."""
    phase, group = state.phase, state.group
    if not isinstance(phase, Preempting) or group is None:
        return None
    notice = state.notice
    nodes = {node: tuple(rank.rank for rank in group.ranks if rank.node == node) for node in phase.nodes}
    return NodesTaken(nodes=nodes, deadline_ms=_milliseconds(state, notice.deadline_t) if notice is not None else None)


def _milliseconds(state: RunState, t: float) -> int | None:
    """Return a time of the run's clock in Unix milliseconds."""
    try:
        began_s = datetime.fromisoformat(state.accepted_at).timestamp()
    except ValueError:
        return None
    return round((began_s + t) * 1000)


def preempt(state: RunState, nodes: tuple[str, ...], why: str) -> StateChanged:
    """Return the change to PREEMPTING, also from itself when more is known of the same."""
    notice, grace_s = state.notice, state.job.failure.preemption_grace_s
    announced_t = notice.deadline_t if notice is not None else state.t
    deadline_t = announced_t + grace_s if notice is not None else state.t
    within = f"in {max(announced_t - state.t, 0.0):.1f} s" + (f", and {grace_s:g} s of grace" if grace_s else "")
    reason = f"{', '.join(nodes)} will be taken back {within}{because(why)}"
    return StateChanged(
        from_state=state_name(state.phase),
        to_state="preempting",
        nodes=nodes,
        deadline_t=deadline_t,
        cause=relative(notice.cause if notice is not None else state.phase.cause, state.n),
        reason=reason,
    )


def preempting(state: RunState, group: Group, phase: Preempting, policies: Policies) -> Step:
    """Return what is done while nodes are about to be taken back.

    The group goes on elsewhere as soon as the ranks have saved what they have, if there is room; else when they are
    done, or when their time is over.
    """
    failures = open_failures(state)
    if group.over and not failures:
        return finished(state, group)
    reclaims = tuple(failure for failure in failures if failure.kind == "preempted")
    if not reclaims and (ready := decidable(state, failures) or too_late(state, group)):
        return fail(state, ready, policies)
    nodes = taken(state, group)
    if not nodes and not reclaims:
        return (change(state, "running", _no_more(state, phase), phase.cause),)
    changed = nodes and state.notice is not None and _differs(state, phase, nodes)
    fired = tuple(one for one in state.fired if one.timer == "preemption")
    if changed and state.notice is not None and not fired:
        return (preempt(state, nodes, state.notice.reason),)
    # Replica groups fail by the node; ranks that stand and fall together, once.
    phase = replace(phase, nodes=nodes)
    each = nodes if size_of(state) is not None else nodes[:1]
    if fired and not group.over:
        return fail(state, (*failures, *(reclaimed(state, phase, fired[0].cause, node) for node in each)), policies)
    if nodes and not group.over and has_saved(state, phase):
        leaving = (*failures, *(saved(state, phase, node) for node in each))
        if _can_leave(state, group, leaving):
            return fail(state, leaving, policies)
    if reclaims and failing(state, failures):
        return fail(state, failures, policies)
    return fail(state, failures, policies) if group.over else bring_back(state, group)


def has_saved(state: RunState, phase: Preempting) -> bool:
    """Whether the checkpoint that the ranks were asked for counts: one of a report that they made afterwards."""
    return state.checkpoint is not None and state.checkpoint.index > phase.after


def _can_leave(state: RunState, group: Group, failures: tuple[Failure, ...]) -> bool:
    """Whether there is room for what goes on elsewhere: for the places of groups that are replaced, or for all."""
    replicas = failing(state, failures)
    return can_mend(state, group, vacated(state, failures, replicas)) if replicas else has_room(state)


def _differs(state: RunState, phase: Preempting, nodes: tuple[str, ...]) -> bool:
    notice = state.notice
    deadline_t = notice.deadline_t + state.job.failure.preemption_grace_s if notice is not None else phase.deadline_t
    named = frozenset(notice.nodes if notice is not None else ())
    return deadline_t != phase.deadline_t or not named >= frozenset(phase.nodes) >= frozenset(nodes)


def _no_more(state: RunState, phase: Preempting) -> str:
    """Say why the run is RUNNING again: the nodes stay, or nothing of it is left on them."""
    named = state.notice.nodes if state.notice is not None else ()
    going = [node for node in phase.nodes if node in named]
    return f"every rank on {listed(going)} is done: nothing is lost there" if going else stay(phase.nodes)
