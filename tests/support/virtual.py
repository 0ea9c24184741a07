"""An event loop whose time is virtual: when nothing can run, its clock jumps to the next timer. No real waiting."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class _NeverWaits(selectors.SelectSelector):
    """A selector that returns at once, and lets the loop's clock pass the time it was told to wait."""

    loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Look for what is ready; nothing ready makes the time pass."""
        found = super().select(0)
        if not found and self.loop is not None:
            if timeout is None:
                raise RuntimeError("everything waits, and no timer is set: the program is stuck")
            self.loop.passed_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is what its timers say."""

    def __init__(self) -> None:
        selector = _NeverWaits()
        self.passed_s = 0.0
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self.passed_s


def run_virtual(main: Coroutine[None, None, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
