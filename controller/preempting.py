"""PREEMPTING: nodes will be taken back; ranks finish or save until the deadline (BEHAVIOUR §12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.failing import open_failures, reclaimed
from runfold.controller.moves import change, fail, finished
from runfold.controller.words import because
from runfold.events.base import relative
from runfold.events.edges import state_name
from runfold.events.transitions import StateChanged

if TYPE_CHECKING:
    from runfold.controller.moves import Step
    from runfold.controller.policies import Policies
    from runfold.events.state import Group, Preempting, RunState


def taken(state: RunState, group: Group) -> tuple[str, ...]:
    """Return the nodes of the group that a notice in force names."""
    here = {place.node for place in group.places}
    return tuple(node for node in state.notice.nodes if node in here) if state.notice is not None else ()


def preempt(state: RunState, nodes: tuple[str, ...], why: str) -> StateChanged:
    """Return the change to PREEMPTING, also from itself when more is known of the same."""
    notice = state.notice
    deadline_t = notice.deadline_t + state.job.failure.preemption_grace_s if notice is not None else state.t
    within_s = max(deadline_t - state.t, 0.0)
    reason = f"{', '.join(nodes)} will be taken back in {within_s:.1f} s{because(why)}"
    return StateChanged(
        from_state=state_name(state.phase),
        to_state="preempting",
        nodes=nodes,
        deadline_t=deadline_t,
        cause=relative(notice.cause if notice is not None else state.phase.cause, state.n),
        reason=reason,
    )


def preempting(state: RunState, group: Group, phase: Preempting, policies: Policies) -> Step:
    """Return what is done while nodes are about to be taken back."""
    failures = open_failures(state)
    if group.over and not failures:
        return finished(state, group)
    reclaims = tuple(failure for failure in failures if failure.kind == "preempted")
    if failures and not reclaims:
        return fail(state, failures, policies)
    nodes = taken(state, group)
    if not nodes and not reclaims:
        return (change(state, "running", f"{', '.join(phase.nodes)} stay after all", phase.cause),)
    changed = nodes and state.notice is not None and _differs(state, phase, nodes)
    if changed and state.notice is not None and not state.fired:
        return (preempt(state, nodes, state.notice.reason),)
    if state.fired and not group.over:
        return fail(state, (*failures, reclaimed(state, phase, state.fired[0].cause)), policies)
    return fail(state, failures, policies) if group.over else ()


def _differs(state: RunState, phase: Preempting, nodes: tuple[str, ...]) -> bool:
    notice = state.notice
    deadline_t = notice.deadline_t + state.job.failure.preemption_grace_s if notice is not None else phase.deadline_t
    return (nodes, deadline_t) != (phase.nodes, phase.deadline_t)
