"""A runner that an earlier supervisor has started: watched from here on, though nobody will see how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runfold.events.assignment import Mark
from runfold.workers.errors import LinkError
from runfold.workers.hatchery import StopDeadline, give_up_on
from runfold.workers.heirs import knock
from runfold.workers.pipe import RunnerPipe, StopNow
from runfold.workers.places import Place, is_held, socket_path
from runfold.workers.placing import RunnerHere
from runfold.workers.strangers import Stranger

KNOCK_AGAIN_S: Final = 0.5
UNSEEN_REASON: Final = "it was started by an earlier supervisor, and nobody could see how it ended"
_LOG: Final = logging.getLogger("runfold.workers")


class AdoptedRunner:
    """A runner by its place's file, its process id and its start time. `secret` is its group's, once it has told it."""

    def __init__(self, path: Path, place: Place, on_end: Callable[[], None]) -> None:
        self.node = place.node
        self.place = place
        self.told = 0
        self._path = path
        self._on_end = on_end
        self._stranger = Stranger(place.pid, place.started)
        self._pipe: RunnerPipe | None = None
        self.secret = b""
        self._ended_s: float | None = None
        self._orderly = False
        self._stop: StopNow | None = None
        self._deadline = StopDeadline(f"the runner of {place.run} on {place.node}", self._kill)
        self._reaching = asyncio.create_task(self._reach(), name=f"knock {place.run} {place.node}")
        self._task = asyncio.create_task(self._live(), name=f"adopted {place.run} {place.node}")

    @property
    def pid(self) -> int:
        """Its process."""
        return self.place.pid

    @property
    def here(self) -> RunnerHere:
        """What the planner needs to know."""
        return RunnerHere(
            node=self.node, ended_s=self._ended_s, orderly=self._orderly, reason=UNSEEN_REASON, told=self.told
        )

    @property
    def alive(self) -> bool:
        """Whether it lives."""
        return self._ended_s is None

    def stop(self, reason: str, grace_s: float, said_by: Mark | None = None) -> None:
        """Tell it to stop; one that does not within `grace_s` and a margin is killed."""
        if not self.alive or not self._deadline.tighten(grace_s):
            return
        self._stop = StopNow(reason=reason, grace_s=grace_s, said_by=said_by)
        if self._pipe is not None:
            self._pipe.send(self._stop)

    async def wait(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._task)

    async def let_go(self) -> None:
        """Leave it to the next heir: it goes on."""
        for task in (self._task, self._reaching):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._deadline.close()
        if self._pipe is not None:
            self._pipe.close()

    async def _live(self) -> None:
        try:
            if self._stranger.alive:
                await self._stranger.wait()
            self._orderly = not is_held(self._path)
            self._ended_s = time.monotonic()
        finally:
            self._stranger.close()
            self._reaching.cancel()
            self._deadline.cancel()
        if self._pipe is not None:
            self._pipe.close()
        self._on_end()

    async def _reach(self) -> None:
        """Knock until it opens: from then on it has a supervisor again."""
        told = False
        while self._pipe is None:
            try:
                self._pipe = await knock(socket_path(self._path), self.pid)
            except LinkError as error:
                if not told:
                    _LOG.warning("%s: %s; knocking again", self.place.run, error)
                    told = True
                await asyncio.sleep(KNOCK_AGAIN_S)
        if self._stop is not None:
            self._pipe.send(self._stop)
        with contextlib.suppress(LinkError):
            self.secret = await self._pipe.secret()

    async def _kill(self) -> None:
        give_up_on(self.pid)
        self._stranger.signal(signal.SIGKILL)
