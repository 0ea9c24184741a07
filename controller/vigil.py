"""A loop's watch over its run: ticks come in, conclusions wait until the loop takes them. No connection, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller import liveness
from runfold.controller.liveness import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.controller.liveness import Conclusions, Heard
    from runfold.controller.ports import Ear
    from runfold.events.state import RunState


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
        self._watch, found = liveness.tick(self._watch, self._state, heard, tick_s)
        if found and not self._found:
            self._found = found
            self._wake()
