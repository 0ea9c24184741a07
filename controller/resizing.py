"""Another size for a group: planned, a checkpoint asked for, then the group is stopped; and asked for before it stands.

The checkpoint is waited for within `timeouts.resize_wait_s`; training goes on meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.elastic import last_index, unsaved, unsaved_words
from runfold.controller.moves import change, news
from runfold.controller.sizes import Hold
from runfold.controller.words import ranks
from runfold.events.base import relative
from runfold.events.transitions import ResizeDropped, ResizePlanned

if TYPE_CHECKING:
    from runfold.controller.moves import Step
    from runfold.controller.policies import Policies
    from runfold.controller.sizes import Resize
    from runfold.events.elastic import ResizePlan
    from runfold.events.state import Group, RunState
    from runfold.events.transitions import StateChanged


def resize(state: RunState, group: Group, policies: Policies) -> Step:
    """Return what a running group's size calls for."""
    scaling, plan = policies.scaling.running(state), state.elastic.plan
    if isinstance(scaling, Hold):
        return () if plan is None else (_dropped(state, group, plan),)
    if not scaling.saved_first:
        return (_stopped(state, scaling, f"resizing {scaling.reason}"),)
    if plan is not None:
        return _waiting(state, scaling, plan)
    if unsaved(state) == 0:
        return (_stopped(state, scaling, f"resizing {scaling.reason}"),)
    return (_planned(state, scaling),)


def resize_unplaced(state: RunState, group: Group, policies: Policies) -> Step:
    """Ask for fewer ranks when a group that waits for its places would get them."""
    scaling = policies.scaling.idle(state)
    if isinstance(scaling, Hold) or not scaling.fits or scaling.num_workers >= group.num_workers:
        return ()
    was = ranks(group.num_workers)
    return (_stopped(state, scaling, f"{was} have no room any more: asking for {scaling.reason}"),)


def _planned(state: RunState, scaling: Resize) -> ResizePlanned:
    wait_s = state.job.timeouts.resize_wait_s
    reason = f"resizing {scaling.reason}; the ranks are asked for a checkpoint first, for at most {wait_s:g} s"
    return ResizePlanned(
        num_workers=scaling.num_workers,
        deadline_t=round(state.t + wait_s, 6),
        index=last_index(state),
        cause=relative(scaling.cause or news(state, state.phase.cause), state.n),
        reason=reason,
    )


def _waiting(state: RunState, scaling: Resize, plan: ResizePlan) -> Step:
    saved = state.checkpoint
    if saved is not None and saved.index >= plan.index:
        return (_stopped(state, scaling, f"resizing {scaling.reason}; {saved.name} stands"),)
    if state.t < plan.deadline_t:
        return ()
    late = f"no checkpoint within timeouts.resize_wait_s ({state.job.timeouts.resize_wait_s:g} s)"
    return (_stopped(state, scaling, f"resizing {scaling.reason}; {late}: {unsaved_words(state)}"),)


def _stopped(state: RunState, scaling: Resize, reason: str) -> StateChanged:
    return change(state, "resizing", reason, scaling.cause, num_workers=scaling.num_workers)


def _dropped(state: RunState, group: Group, plan: ResizePlan) -> ResizeDropped:
    fate = f"{ranks(plan.num_workers)} are not to be had, or not wanted, any more"
    cause = state.elastic.room.cause if state.elastic.room is not None else plan.cause
    return ResizeDropped(
        num_workers=group.num_workers,
        cause=relative(cause, state.n),
        reason=f"the group keeps its {ranks(group.num_workers)}: {fate}",
    )
