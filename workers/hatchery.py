"""Runner processes: forked from a zygote that has everything imported, watched to their end, made to end in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from runfold.events.assignment import Mark
from runfold.workers.errors import SpawnError
from runfold.workers.logs import log_failure
from runfold.workers.pipe import EXIT_CANNOT, EXIT_TAKEN, RunnerPipe, RunnerSpec, StopNow
from runfold.workers.placing import RunnerHere
from runfold.workers.processes import EXIT_BUG, Exit, wake_children
from runfold.workers.spawner import Child, Spawner
from runfold.workers.strangers import Stranger
from runfold.workers.zygote import Role

RUNNER_TARGET: Final = "runfold.workers.runner:main"
STOP_MARGIN_S: Final = 8.0
"""How much longer than its ranks' patience a runner may take to end before it is killed."""
_REASONS: Final[Mapping[int | None, str]] = {
    EXIT_CANNOT: "it lost its rank spawner or could not reach the broker; the supervisor's log says which",
    EXIT_TAKEN: "another runner of the run was still at work on this node; it is told to end",
    EXIT_BUG: "it met a bug of runfold's own; the supervisor's log has the traceback",
}
_LOG: Final = logging.getLogger("runfold.workers")


def launch_zygote() -> Spawner:
    """Start the zygote as a program of its own; it imports while the caller does other things."""
    return Spawner.launch(RUNNER_TARGET, Role.RUNNERS)


class Hatchery:
    """The zygote, started again when it dies."""

    def __init__(self, zygote: Spawner) -> None:
        self._zygote = zygote
        self._ready = False
        self._failed = False
        self._lock = asyncio.Lock()

    async def spawn(self, pipe: socket.socket) -> Child:
        """Fork a runner that holds `pipe`; raise `SpawnError` when that cannot be."""
        zygote = await self.warm()
        return await zygote.spawn(b"", {"pipe": pipe.fileno()})

    async def warm(self) -> Spawner:
        """Return the zygote once it can fork."""
        async with self._lock:
            if self._failed or (self._ready and self._zygote.lost):
                _LOG.warning("the zygote (process %d) is gone; another one is started", self._zygote.pid)
                await self._zygote.close()
                self._zygote, self._ready = launch_zygote(), False
            if not self._ready:
                self._failed = True
                await self._zygote.start()
                self._failed, self._ready = False, True
            return self._zygote

    async def close(self) -> None:
        """End the zygote."""
        await self._zygote.close()


class StopDeadline:
    """Until when a runner that was told to stop has to be gone, else `kill` ends it; the strictest word counts.

    `who` it is, in words. `margin_s`: how much longer than its ranks' patience it has.
    """

    def __init__(self, who: str, kill: Callable[[], Awaitable[None]], margin_s: float = STOP_MARGIN_S) -> None:
        self._who = who
        self._kill = kill
        self._margin_s = margin_s
        self._at_s: float | None = None
        self._task: asyncio.Task[None] | None = None

    def tighten(self, grace_s: float) -> bool:
        """Have it killed when it is not gone within `grace_s` and a margin; False when it is to be gone sooner."""
        at_s = time.monotonic() + grace_s + self._margin_s
        if self._at_s is not None and at_s >= self._at_s:
            return False
        self._at_s = at_s
        self.cancel()
        self._task = asyncio.create_task(self._in_time(at_s), name="runner stop")
        says = f"{self._who} did not end in time, and could not be killed"
        self._task.add_done_callback(partial(log_failure, what=says))
        return True

    def cancel(self) -> None:
        """Kill it no more: it is gone."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Kill it no more: it is let go."""
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _in_time(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - time.monotonic()))
        await self._kill()


def give_up_on(pid: int) -> None:
    """Say that a runner did not end in time, and let stopped ranks of it go on, so that they can end with it."""
    _LOG.warning("the runner %d did not end in time and is killed, with its ranks", pid)
    wake_children(pid)


class RunnerProcess:
    """One runner, from the wish to start it to its end."""

    def __init__(self, spec: RunnerSpec, hatchery: Hatchery, on_end: Callable[[], None]) -> None:
        self.node = spec.node
        self.told = 0
        self.secret = spec.secret
        self._hatchery = hatchery
        self._on_end = on_end
        ours, self._theirs = socket.socketpair()
        self._pipe = RunnerPipe(ours)
        # Waits in the socket for a process that can read it, and so does a word to stop.
        self._pipe.send(spec)
        self._child: Child | None = None
        self._exit: Exit | None = None
        self._reason = ""
        self._ended_s: float | None = None
        self._stranger: Stranger | None = None
        self._deadline = StopDeadline(f"the runner of {spec.run} on {spec.node}", self._kill)
        self._task = asyncio.create_task(self._live(), name=f"runner {spec.run} {spec.node}")

    @property
    def here(self) -> RunnerHere:
        """What the planner needs to know."""
        ended = self._exit
        return RunnerHere(
            node=self.node,
            ended_s=self._ended_s,
            code=ended.code if ended is not None else None,
            signal=ended.signal if ended is not None else None,
            reason=self._reason,
            told=self.told,
            unseen=ended is not None and not ended.known,
            place_taken=ended is not None and ended.code == EXIT_TAKEN,
        )

    @property
    def pid(self) -> int | None:
        """Its process, once there is one."""
        return self._child.pid if self._child is not None else None

    @property
    def alive(self) -> bool:
        """Whether it lives, or is being started."""
        return self._ended_s is None

    def stop(self, reason: str, grace_s: float, said_by: Mark | None = None) -> None:
        """Tell it to stop; one that does not within `grace_s` and a margin is killed."""
        if self.alive and self._deadline.tighten(grace_s):
            self._pipe.send(StopNow(reason=reason, grace_s=grace_s, said_by=said_by))

    async def wait(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._task)

    async def _live(self) -> None:
        try:
            with self._theirs:
                self._child = await self._hatchery.spawn(self._theirs)
            ended = await self._child.wait()
            if not ended.known:
                await self._end_unseen(self._child)
            self._reason = self._reason or _REASONS.get(ended.code, "")
            self._exit = ended
        except SpawnError as error:
            self._reason = f"it could not be started: {error}"
        finally:
            self._ended_s = time.monotonic()
            self._pipe.close()
            self._deadline.cancel()
            self._on_end()

    async def _end_unseen(self, child: Child) -> None:
        """The zygote is gone, and the runner goes on: its end is seen, though not how it ends."""
        self._reason = "the zygote that it was forked from died before it, and nobody could see how it ended"
        self._stranger = Stranger(child.pid, child.started)
        try:
            if self._stranger.alive:
                await self._stranger.wait()
        finally:
            self._stranger.close()

    async def let_go(self) -> None:
        """Leave it to the next heir: it goes on."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._deadline.close()

    async def _kill(self) -> None:
        if self._child is None:
            return
        give_up_on(self._child.pid)
        if self._stranger is not None:
            self._stranger.signal(signal.SIGKILL)
            return
        with contextlib.suppress(SpawnError):
            await self._child.kill(signal.SIGKILL, group=False)
