"""When a timer may be said to have fired: one that waits for somebody's word only once it could have been heard.

An outage of the broker, a controller that stood still, a take-over end nothing (promise 6): of what a timer waits for,
the word may lie in the inbox, or wait in a source's spool. So the time of such a timer is *observed* time: ticks at
which everything in the inbox was read, each counted for at most `TICK_COUNTS_S`. A structure without a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.controller.timers import running_timers
from runfold.events.conclusions import TimerFired

if TYPE_CHECKING:
    from runfold.events.conclusions import Timer
    from runfold.events.state import RunState

TICK_S: Final = 0.25
TICK_COUNTS_S: Final = 0.5
HEIR_PATIENCE_S: Final = 5.0
"""What a controller that takes a run over observes, at the least, before it says of a timer that it has fired."""

BY_TIME_ALONE: Final[frozenset[Timer]] = frozenset(("backoff", "preemption", "dwell", "replica_backoff"))
"""Timers that wait for nobody's word."""

_SLACK_S: Final = 1e-6


class Alarm:
    """The timers of one run at one controller. `patience_s` holds for those that run already when it begins."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self._patience_s: float | None = patience_s
        self._observed_s = 0.0
        self._looked_t: float | None = None
        self._was_caught_up = False
        self._needs: dict[tuple[Timer, float], float] = {}

    def due(self, state: RunState, t: float, *, caught_up: bool) -> tuple[TimerFired, ...]:
        """Return the timers that fire at `t`; `caught_up`: what is to be said by now is said, and read."""
        self._pass(t, caught_up=caught_up)
        running = running_timers(state)
        self._needs = {
            (timer, due_t): self._needs.get((timer, due_t), self._observed_s + self._needs_s(state, due_t, t))
            for timer, due_t in running
        }
        self._patience_s = None
        return tuple(
            TimerFired(timer=timer, deadline_t=due_t)
            for timer, due_t in running
            if due_t <= t and (timer in BY_TIME_ALONE or (caught_up and self._left_s(timer, due_t) <= _SLACK_S))
        )

    def wake_t(self, state: RunState, t: float) -> float | None:
        """Return when to look again although nothing happens; None while no timer runs."""
        waits = [
            due_t - t if timer in BY_TIME_ALONE else min(max(self._left_s(timer, due_t), due_t - t, _SLACK_S), TICK_S)
            for timer, due_t in running_timers(state)
        ]
        return t + min(waits) if waits else None

    def _needs_s(self, state: RunState, due_t: float, t: float) -> float:
        """Return how long is to be observed from a timer's first sight on.

        The entry that began it may have waited for its acknowledgement through an outage: nobody knew of it then.
        """
        return max(due_t - t, due_t - state.t if self._patience_s is None else self._patience_s)

    def _left_s(self, timer: Timer, due_t: float) -> float:
        return self._needs.get((timer, due_t), self._observed_s + TICK_S) - self._observed_s

    def _pass(self, t: float, *, caught_up: bool) -> None:
        if self._looked_t is not None and caught_up and self._was_caught_up:
            self._observed_s += min(t - self._looked_t, TICK_COUNTS_S)
        self._looked_t, self._was_caught_up = t, caught_up
