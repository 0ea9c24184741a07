"""What ties a runner to its supervisors: the place that it holds, the pipe of the one, the door for the next."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runfold.events.config import Timeouts
from runfold.workers.heirs import Door
from runfold.workers.pipe import RunnerSpec, StopNow, SupervisorPipe
from runfold.workers.places import Place, PlaceLock
from runfold.workers.plan import ABANDONED_GRACE_S
from runfold.workers.processes import start_time

TIED_PATIENCE_S: Final = 10.0
"""One that should be killed with who started it, and is not, ends by itself after this."""
_LOG: Final = logging.getLogger("runfold.workers")


class Ties:
    """Made by `tie` before anything is started. `listen` hears every word to stop, of whichever supervisor.

    `stop` is what was said, with the least patience; `stopping` is set with it, and `on_stop` called.
    """

    def __init__(self, spec: RunnerSpec, pipe: SupervisorPipe, lock: PlaceLock | None, door: Door | None) -> None:
        self.stop: StopNow | None = None
        self.stopping = asyncio.Event()
        self.on_stop: Callable[[StopNow], None] = lambda _: None
        self.adopt_within_s = Timeouts().adopt_within_s
        self._spec = spec
        self._pipe = pipe
        self._lock = lock
        self._door = door

    async def listen(self) -> None:
        """Hear the supervisor; when it is gone wait for an heir, and when none comes in time that is a word to stop."""
        pipe: SupervisorPipe | None = self._pipe
        while pipe is not None:
            if self._door is not None:
                self._door.attend(pipe)
            while (message := await pipe.receive()) is not None:
                if isinstance(message, StopNow):
                    self.order(message)
            pipe.close()
            if self._spec.tied:
                # A word of its own would count as another failure beside that of the one it is tied to.
                await asyncio.sleep(TIED_PATIENCE_S)
            pipe = await self._heir(self.adopt_within_s)
        waited = f", and no other came within timeouts.adopt_within_s ({self.adopt_within_s:g} s)" if self._door else ""
        self.order(StopNow(reason=f"the supervisor is gone{waited}", grace_s=ABANDONED_GRACE_S))

    def order(self, stop: StopNow) -> None:
        """Take a word to stop: a later one may shorten the patience, never lengthen it."""
        known = self.stop or stop
        marks = [one.said_by for one in (known, stop) if one.said_by is not None]
        grace_s, said_by = min(stop.grace_s, known.grace_s), max(marks, default=None)
        self.stop = StopNow(reason=stop.reason, grace_s=grace_s, said_by=said_by)
        self.stopping.set()
        self.on_stop(self.stop)

    async def _heir(self, timeout_s: float) -> SupervisorPipe | None:
        if self._door is None:
            return None
        spec = self._spec
        told = "%s: the supervisor is gone; %s goes on, and waits %g s for an heir"
        _LOG.warning(told, spec.run, spec.node, timeout_s)
        heir = await self._door.heir(timeout_s)
        if heir is not None:
            _LOG.info("%s: the runner on %s has a supervisor again", spec.run, spec.node)
        return heir

    def release(self) -> None:
        """Leave the place in order: everything that was started has ended."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def close(self) -> None:
        """Hear nobody any more. The place stays locked until it is released, or this process is gone."""
        self._pipe.close()
        if self._door is not None:
            self._door.close()


async def tie(spec: RunnerSpec, pipe: SupervisorPipe) -> Ties:
    """Hold the runner's place, and open the door for heirs; `PlaceTakenError` when another runner holds it."""
    if spec.places_dir is None:
        return Ties(spec, pipe, None, None)
    pid = os.getpid()
    place = Place(
        run=spec.run,
        pool=spec.pool,
        node=spec.node,
        source=spec.source,
        attempt=spec.attempt,
        pid=pid,
        started=start_time(pid),
        slots=spec.slots,
        resources=spec.resources,
    )
    lock = PlaceLock.take(Path(spec.places_dir), place)
    if not spec.adopt:
        return Ties(spec, pipe, lock, None)
    try:
        door = await Door.open(lock.socket_path, spec.secret)
    except OSError as error:
        _LOG.warning("%s: no supervisor after this one could adopt this runner: %s", spec.run, error)
        door = None
    return Ties(spec, pipe, lock, door)
