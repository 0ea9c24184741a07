"""The timeouts that run in a state: by the name of their setting, with the limit, and how far each has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.effects import CAUSE_AWAITED_MAX_S, cause_deadline
from runfold.controller.elastic import size_timer
from runfold.events.edges import GROUP_AT_WORK, state_name
from runfold.events.replicas import placement_deadline
from runfold.events.state import Preempting, Rescheduling, Restarting, Running, Scheduling, ShuttingDown
from runfold.events.status import TimeoutStatus
from runfold.events.timing import gathering_deadline

if TYPE_CHECKING:
    from runfold.events.state import Group, RunState


def timeouts(state: RunState) -> dict[str, TimeoutStatus]:
    """Return every timeout that may bring something about now."""
    parts = (_of_phase, _of_size, _of_cause, _of_silence, _of_ranks, _of_tasks)
    return {name: said for part in parts for name, said in part(state).items()}


def _of_phase(state: RunState) -> dict[str, TimeoutStatus]:
    phase, limits = state.phase, state.job.timeouts
    match phase:
        case Scheduling(deadline_t=float(due_t)) if state.group is not None and state.group.layout:
            return {"import_timeout_s": TimeoutStatus(limit_s=limits.import_timeout_s, due_t=due_t)}
        case Scheduling(deadline_t=float(due_t)):
            return {"start_timeout_s": TimeoutStatus(limit_s=limits.start_timeout_s, due_t=due_t)}
        case Rescheduling(not_before_t=due_t) | Restarting(not_before_t=due_t) if due_t > phase.since_t:
            return {"backoff_s": TimeoutStatus(limit_s=round(due_t - phase.since_t, 6), due_t=due_t)}
        case Preempting(deadline_t=due_t):
            return {"preemption": TimeoutStatus(limit_s=round(due_t - phase.since_t, 6), due_t=due_t)}
        case ShuttingDown(deadline_t=due_t):
            return {"shutdown_deadline_s": TimeoutStatus(limit_s=limits.shutdown_deadline_s, due_t=due_t)}
        case _:
            return {}


def _of_size(state: RunState) -> dict[str, TimeoutStatus]:
    timer, due_t = size_timer(state) or ("", 0.0)
    if timer == "resize":
        return {"resize_wait_s": TimeoutStatus(limit_s=state.job.timeouts.resize_wait_s, due_t=due_t)}
    if timer == "dwell":
        limit_s = state.job.scaling.elastic_resize_monitor_interval_s
        return {"elastic_resize_monitor_interval_s": TimeoutStatus(limit_s=limit_s, due_t=due_t)}
    return {}


def _of_cause(state: RunState) -> dict[str, TimeoutStatus]:
    """Broken connections wait for what broke them."""
    due_t = cause_deadline(state)
    return {} if due_t is None else {"cause_awaited_max_s": TimeoutStatus(limit_s=CAUSE_AWAITED_MAX_S, due_t=due_t)}


def _of_silence(state: RunState) -> dict[str, TimeoutStatus]:
    """Silence has no due time: it is counted in observed time, by the controller alone."""
    group, limits = state.group, state.job.timeouts
    if group is None or not group.places or state_name(state.phase) not in GROUP_AT_WORK:
        return {}
    silent = {name: source.silence_s for name, source in state.sources.items() if source.silence_s is not None}
    return {
        "unreachable_after_s": TimeoutStatus(limit_s=limits.unreachable_after_s, counted_s=silent),
        "lost_after_s": TimeoutStatus(limit_s=limits.lost_after_s),
        "lost_alone_after_s": TimeoutStatus(limit_s=limits.lost_alone_after_s),
    }


def _of_ranks(state: RunState) -> dict[str, TimeoutStatus]:
    group, limits = state.group, state.job.timeouts
    if group is None or not isinstance(state.phase, Running | Preempting):
        return {}
    found = {
        "progress_timeout_s": TimeoutStatus(limit_s=limits.progress_timeout_s, counted_s=_stuck(group)),
        "collective_timeout_s": TimeoutStatus(limit_s=limits.collective_timeout_s),
    }
    due_t = gathering_deadline(state.checkpoints, limits.checkpoint_timeout_s)
    if due_t is not None:
        found["checkpoint_timeout_s"] = TimeoutStatus(limit_s=limits.checkpoint_timeout_s, due_t=due_t)
    if (due_t := placement_deadline(group)) is not None:
        found["start_timeout_s"] = TimeoutStatus(limit_s=limits.start_timeout_s, due_t=due_t)
    return found


def _stuck(group: Group) -> dict[str, float]:
    return {f"rank {rank}": group.stuck.quiet_s for rank in group.stuck.ranks} if group.stuck is not None else {}


def _of_tasks(state: RunState) -> dict[str, TimeoutStatus]:
    return {
        f"task {one.task.id}": TimeoutStatus(limit_s=None, due_t=one.task.deadline_t)
        for one in state.tasks
        if one.end is None and one.task.deadline_t is not None
    }
