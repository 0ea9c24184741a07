"""What earlier supervisors have left on this machine: runners at work, found by their places' files, looked for on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runfold.workers.adopted import AdoptedRunner
from runfold.workers.places import Place, find_places

LOOK_EVERY_S: Final = 1.0
SETTLE_S: Final = 2.0
"""A runner that was being started when its supervisor died takes its place within this time."""
UNCLAIMED_MAX_S: Final = 60.0
"""How long a runner is kept whose run has no assignment."""
_LOG: Final = logging.getLogger("runfold.workers")


class Estate:
    """Looks through the places of a pool. `unclaimed` are the runners of runs that nobody here has heard of yet."""

    def __init__(self, folder: str | None, pool: str, on_change: Callable[[], None]) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._pool = pool
        self._on_change = on_change
        self.settled_s = time.monotonic() + SETTLE_S if folder is not None else 0.0
        self.unclaimed: dict[str, list[AdoptedRunner]] = {}
        self._found_s: dict[str, float] = {}

    def look(self, knows: Callable[[Place], bool]) -> list[AdoptedRunner]:
        """Return runners that were not known before; watched from here on."""
        if self._folder is None:
            return []
        found = [
            AdoptedRunner(path, place, self._on_change)
            for path, place in find_places(self._folder)
            if place.pool == self._pool and not knows(place) and not self._is_unclaimed(place)
        ]
        for runner in found:
            _LOG.warning(
                "%s: the runner %d on %s was left by an earlier supervisor", runner.place.run, runner.pid, runner.node
            )
        return found

    def keep(self, runner: AdoptedRunner) -> None:
        """Keep a runner until its run is heard of."""
        run = runner.place.run
        self.unclaimed.setdefault(run, []).append(runner)
        self._found_s.setdefault(run, time.monotonic())

    def claim(self, run: str) -> list[AdoptedRunner]:
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
