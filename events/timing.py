"""The deadlines that a state may have: one of its phase, and those of its checkpoints and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.events.edges import state_name
from runfold.events.replicas import REPLACED_IN, placement_deadline, replica_deadline, replica_size
from runfold.events.state import Preempting, Rescheduling, Restarting, Scheduling, ShuttingDown

if TYPE_CHECKING:
    from runfold.events.checkpoints import Checkpoints
    from runfold.events.conclusions import Timer
    from runfold.events.state import AnyPhase, Group, RunState
    from runfold.events.tasks import OpenTask


OF_SIZE: Final = frozenset[str](("dwell", "resize"))
"""Timers of an elastic run: until its size may change again, and until a checkpoint before that is waited for."""


def gathering_deadline(checkpoints: Checkpoints, timeout_s: float) -> float | None:
    """Return when the time of the first checkpoint that waits for ranks is over."""
    return min((one.since_t + timeout_s for one in checkpoints.gathering if one.due is None), default=None)


def task_deadline(tasks: tuple[OpenTask, ...]) -> float | None:
    """Return when the first task should have ended."""
    due = (one.task.deadline_t for one in tasks if one.end is None and one.task.deadline_t is not None)
    return min(due, default=None)


AS_THEY_STAND: Final = "timers:as-they-stand"
"""What deciders call it in the log; for those that did not, one fired that an input of the same entry had put off."""


def deadline(phase: AnyPhase, group: Group | None) -> tuple[Timer, float] | None:
    """Return the timer that runs in this state and when it is due, on the run's clock; None when none runs."""
    match phase:
        case Scheduling(deadline_t=float(due_t)):
            return ("import" if group is not None and group.layout else "start", due_t)
        case Rescheduling(not_before_t=due_t) | Restarting(not_before_t=due_t) if due_t > phase.since_t:
            return ("backoff", due_t)
        case Preempting(deadline_t=due_t):
            return ("preemption", due_t)
        case ShuttingDown(deadline_t=due_t):
            return ("shutdown", due_t)
        case _:
            return None


def replica_timers(state: RunState) -> tuple[tuple[Timer, float | None], ...]:
    """Return until when replaced groups must have started, and those that are down stay so or wait for a place."""
    group, size = state.group, replica_size(state.job.scaling, state.job.backend)
    if group is None or size is None or not group.replicas or state_name(state.phase) not in REPLACED_IN:
        return ()
    waiting = (one.not_before_t for one in group.replicas if one.down and one.not_before_t > state.t)
    return (
        ("replica", replica_deadline(group, size)),
        ("replica_backoff", min(waiting, default=None)),
        ("placement", placement_deadline(group)),
    )


def final_deadline(state: RunState) -> float | None:
    """Return until when the end of the run waits for validations; None when it does not, or without limit."""
    phase, limit_s = state.phase, state.job.timeouts.final_wait_s
    if limit_s is None or not isinstance(phase, ShuttingDown) or phase.next == "aborted":
        return None
    return phase.since_t + limit_s if any(one.validating for one in state.checkpoints.kept) else None
