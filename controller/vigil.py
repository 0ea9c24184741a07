"""A loop's watch over its run: ticks come in, conclusions wait until the loop takes them. No connection, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.controller import liveness
from runfold.controller.liveness import HEARD_WITHIN_BEATS, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.controller.liveness import Conclusions, Heard
    from runfold.controller.ports import Ear
    from runfold.events.state import RunState

UNSAID_AFTER_S: Final = 1.0
"""A source that has waited so long for the broker to take what it says is waited for."""

WORDS_AWAITED_MAX_S: Final = 3600.0
"""For so long, and no longer, does a timer wait for words that the broker does not take."""


class Vigil:
    """What was heard of one run, and what follows from it. Without an ear nothing is ever concluded.

    `wake` is called when there is something to conclude. What a conclusion changes stands in the state once it is
    folded; until then nothing further is concluded.
    """

    def __init__(self, ear: Ear | None, wake: Callable[[], None]) -> None:
        self._ear = ear
        self._wake = wake
        self._watch = Watch()
        self._state: RunState | None = None
        self._found: Conclusions = ()
        self._unsaid_left_s = self._awaited_s = 0.0

    @property
    def awaits_words(self) -> bool:
        """Whether somebody has something to say that the broker does not take, as when its disk is full."""
        return self._unsaid_left_s > 0 and self._awaited_s < WORDS_AWAITED_MAX_S

    async def open(self, state: RunState, on_tick: Callable[[Heard, float], None]) -> None:
        """Begin to listen; all clocks stand at 0. `on_tick` is called at each tick, and calls `tick`."""
        self._state = state
        if self._ear is not None:
            await self._ear.open(state.job.pool, on_tick)

    def see(self, state: RunState) -> None:
        """Take the state that the newest entry has made."""
        self._state, self._found = state, ()

    def concluded(self, *, caught_up: bool) -> Conclusions:
        """Return what is to be concluded now: nothing while the inbox holds what was not read."""
        if not caught_up:
            self._found = ()
        return self._found

    async def close(self) -> None:
        """Listen no more."""
        if self._ear is not None:
            await self._ear.close()

    def tick(self, heard: Heard, tick_s: float) -> None:
        """Let time pass, of which `tick_s` were observed, in which this was heard."""
        if self._state is None:
            return
        self._await(self._state, heard.unsaid_s, tick_s)
        self._watch, found = liveness.tick(self._watch, self._state, heard, tick_s)
        if found and not self._found:
            self._found = found
            self._wake()

    def _await(self, state: RunState, unsaid_s: float, tick_s: float) -> None:
        if unsaid_s >= UNSAID_AFTER_S:
            self._unsaid_left_s = HEARD_WITHIN_BEATS * max(state.job.timeouts.beat_every_s, 1.0)
        else:
            self._unsaid_left_s = max(0.0, self._unsaid_left_s - tick_s)
        self._awaited_s = self._awaited_s + tick_s if self._unsaid_left_s else 0.0
