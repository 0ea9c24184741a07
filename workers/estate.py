"""What earlier supervisors have left in a pool: runners at work, looked for on and on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from runfold.workers.places import Place
from runfold.workers.pools.pool import Left, Pool

LOOK_EVERY_S: Final = 1.0
UNCLAIMED_MAX_S: Final = 60.0
"""How long a runner is kept whose run has no assignment."""
_LOG: Final = logging.getLogger("runfold.workers")


class Estate:
    """Asks a pool what is left. `unclaimed` are the runners of runs that nobody here has heard of yet."""

    def __init__(self, pool: Pool, on_change: Callable[[], None]) -> None:
        self._pool = pool
        self._on_change = on_change
        self.settled_s = pool.settled_s
        self.unclaimed: dict[str, list[Left]] = {}
        self._found_s: dict[str, float] = {}

    def look(self, knows: Callable[[Place], bool]) -> list[Left]:
        """Return runners that were not known before; watched from here on."""
        found = self._pool.find(lambda place: knows(place) or self._is_unclaimed(place), self._on_change)
        for runner in found:
            _LOG.warning(
                "%s: the runner %s on %s was left by an earlier supervisor", runner.place.run, runner.pid, runner.node
            )
        return found

    def keep(self, runner: Left) -> None:
        """Keep a runner until its run is heard of."""
        run = runner.place.run
        self.unclaimed.setdefault(run, []).append(runner)
        self._found_s.setdefault(run, time.monotonic())

    def claim(self, run: str) -> list[Left]:
        """Hand over the runners of a run that is heard of."""
        self._found_s.pop(run, None)
        return self.unclaimed.pop(run, [])

    def end_unclaimed(self) -> list[str]:
        """Stop the runners that nobody asks for; return the runs of which none is left."""
        now = time.monotonic()
        for run, runners in self.unclaimed.items():
            if now >= self._found_s[run] + UNCLAIMED_MAX_S:
                for runner in runners:
                    runner.stop("its run has no assignment any more", 0.0)
        return [run for run, runners in self.unclaimed.items() if not any(runner.alive for runner in runners)]

    async def let_go(self) -> None:
        """Leave what is unclaimed to the next supervisor."""
        runners = [runner for kept in self.unclaimed.values() for runner in kept]
        await asyncio.gather(*(runner.let_go() for runner in runners))

    def _is_unclaimed(self, place: Place) -> bool:
        return any(runner.pid == place.pid for runner in self.unclaimed.get(place.run, ()))
