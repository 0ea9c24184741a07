"""The one deadline that a state may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.state import Preempting, Rescheduling, Restarting, Scheduling, ShuttingDown

if TYPE_CHECKING:
    from runfold.events.conclusions import Timer
    from runfold.events.state import AnyPhase, Group


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
