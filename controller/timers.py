"""Timers: what is due, and when to look again. They run on the run's clock and live in its state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.conclusions import TimerFired
from runfold.events.timing import deadline

if TYPE_CHECKING:
    from runfold.events.state import RunState


def due_timers(state: RunState, t: float) -> tuple[TimerFired, ...]:
    """Return the conclusions that stand for timers due at `t`; the loop puts them after the other inputs."""
    due = deadline(state.phase, state.group)
    if due is None or state.fired or due[1] > t:
        return ()
    return (TimerFired(timer=due[0], deadline_t=due[1]),)


def wake_at(state: RunState) -> float | None:
    """Return when, on the run's clock, the next timer is due; None while only inputs can change anything."""
    due = deadline(state.phase, state.group)
    return due[1] if due is not None and not state.fired else None
