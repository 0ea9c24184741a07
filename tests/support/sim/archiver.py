"""The archiver as a process, and the store that it writes to: real segments, in memory, amid failures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from runfold.controller.ports import Unavailable
from runfold.events.log import LogUnavailable
from runfold.growing import read_on
from runfold.replay.closing import close, course_in
from runfold.replay.errors import ReplayError
from runfold.replay.segments import grow, grown_so_far
from runfold.replay.unarchive import read_last
from support.sim.ports import SimPorts

if TYPE_CHECKING:
    from runfold.events.nats.log import JetStreamLog
    from support.sim.process import Process
    from support.sim.world import World

EVERY_S: Final = (0.5, 2.0)
ARCHIVER: Final = "archiver"


class Killed(BaseException):
    """The archiver dies between two writes."""


class MemoryFiles:
    """A store in memory. While it `fails`, nothing can be read or written; a writer may die `before` a write."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fails = False
        self.files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        self._reach()
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def write(self, name: str, data: bytes) -> None:
        """Replace a file."""
        self._reach()
        self.files[name] = data

    def names(self, folder: str) -> list[str]:
        """Return the names of files and folders in a folder."""
        self._reach()
        inside = [name.removeprefix(f"{folder}/") for name in self.files if not folder or name.startswith(f"{folder}/")]
        return sorted({name.partition("/")[0] for name in inside})

    def _reach(self) -> None:
        if self.fails:
            raise OSError("the storage does not answer")


class MortalFiles:
    """A store as one life of an archiver writes to it: it may end before any write."""

    def __init__(self, files: MemoryFiles, world: World) -> None:
        self.url = files.url
        self._files, self._world = files, world

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        return self._files.read(name)

    def names(self, folder: str) -> list[str]:
        """Return the names of files and folders in a folder."""
        return self._files.names(folder)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, or die."""
        self._world.net.steps += 1
        if self._world.net.happens(self._world.archiver_mortality):
            raise Killed(name)
        self._files.write(name, data)


class ArchiverSeat:
    """The archiver, one life at a time; started again when it dies."""

    def __init__(self, world: World) -> None:
        self.stores: dict[str, MemoryFiles] = {}
        self.process: Process | None = None
        self._world = world

    def start(self) -> None:
        """Begin a life."""
        if self.process is None or not self.process.alive:
            self.process = self._world.process(ARCHIVER)
            self.process.spawn(self._live(self.process), "archive")

    def die(self) -> None:
        """End it where it stands."""
        if self.process is not None:
            self.process.kill()

    def store(self, run: str) -> MemoryFiles:
        """Return where a run is archived."""
        return self.stores.setdefault(run, MemoryFiles(f"memory://{run}"))

    async def _live(self, process: Process) -> None:
        world, troubled = self._world, False
        ports = SimPorts(process, world.net, world.broker, world.truth)
        while True:
            await asyncio.sleep(world.dice.uniform(*EVERY_S))
            for run in list(world.truth.logs):
                try:
                    await self._go_on(ports, run)
                except (ReplayError, OSError, LogUnavailable, Unavailable) as error:
                    if not troubled:
                        world.truth.note(f"{process.boot}: {run} is archived later: {error}")
                    troubled = True
                except Killed:
                    world.truth.note(f"{process.boot} dies as it writes")
                    asyncio.get_running_loop().call_later(world.dice.uniform(*world.scenario.restarts_s), self.start)
                    process.kill()
                    return

    async def _go_on(self, ports: SimPorts, run: str) -> None:
        """Write what is new of a run; close its archive once it has ended."""
        store, log = MortalFiles(self.store(run), self._world), ports.run(run).log
        grown = grown_so_far(store, run)
        while (found := await read_on(cast("JetStreamLog", log), run, grown)).lines:
            grown = grow(store, run, grown, found.lines)
        last = read_last(store)
        if not found.broken and (last is None or last.head != grown.head):
            close(store, course_in(store, run), grown)
