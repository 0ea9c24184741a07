"""The run's clock: seconds since entry 0, never decreasing, advanced by an injected monotonic clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

DIGITS: Final = 6
"""`t` is written in microseconds: what is folded again from the log is what was decided on."""

WAIT_MIN_S: Final = 0.001
"""Shortest wait for a time of the clock, so that rounding never makes a wait spin."""


class RunClock:
    """One run's clock. It stands still until `start`: at take-over the first entry repeats the last one's `t`."""

    def __init__(self, monotonic: Callable[[], float], t: float = 0.0) -> None:
        self._monotonic = monotonic
        self._t = t
        self._offset: float | None = None

    def start(self) -> None:
        """Run from here on."""
        self._offset = self._t - self._monotonic()

    def advance(self, gap_s: float) -> None:
        """Add what passed while nobody advanced it; never goes back."""
        self._t = round(self.now() + max(gap_s, 0.0), DIGITS)
        if self._offset is not None:
            self.start()

    def now(self) -> float:
        """Return `t`."""
        if self._offset is not None:
            self._t = max(self._t, round(self._monotonic() + self._offset, DIGITS))
        return self._t

    def until(self, t: float) -> float:
        """Return how many seconds to wait for a time of this clock."""
        return max(t - self.now(), WAIT_MIN_S)
