"""Timers: what is due, and when to look again. They run on the run's clock and live in its state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.effects import cause_deadline
from runfold.controller.elastic import size_timer
from runfold.events.conclusions import TimerFired
from runfold.events.timing import deadline, final_deadline, gathering_deadline, replica_timers, task_deadline

if TYPE_CHECKING:
    from runfold.events.conclusions import Timer
    from runfold.events.state import RunState


def due_timers(state: RunState, t: float) -> tuple[TimerFired, ...]:
    """Return the conclusions that stand for timers due at `t`; the loop puts them after the other inputs."""
    return tuple(TimerFired(timer=timer, deadline_t=due_t) for timer, due_t in running_timers(state) if due_t <= t)


def wake_at(state: RunState) -> float | None:
    """Return when, on the run's clock, the next timer is due; None while only inputs can change anything."""
    return min((due_t for _, due_t in running_timers(state)), default=None)


def running_timers(state: RunState) -> tuple[tuple[Timer, float], ...]:
    """Return the timers that run in this state, and when, on the run's clock, each is due."""
    if state.terminal:
        return ()
    fired = {fired.timer for fired in state.fired}
    phase = deadline(state.phase, state.group) if not fired - {"final", "replica"} else None
    final_t = final_deadline(state) if "final" not in fired else None
    checkpoint_t = gathering_deadline(state.checkpoints, state.job.timeouts.checkpoint_timeout_s)
    task_t = task_deadline(state.tasks)
    others: tuple[tuple[Timer, float | None], ...] = (
        *(one for one in replica_timers(state) if one[0] not in fired),
        ("checkpoint", checkpoint_t),
        ("task", task_t),
        ("final", final_t),
        ("cause", cause_deadline(state)),
    )
    running = [timer for timer in (phase, size_timer(state)) if timer is not None]
    return (*running, *((timer, due_t) for timer, due_t in others if due_t is not None))
