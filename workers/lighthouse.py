"""torchft's lighthouse: started by the runner of rank 0, in a process of its own that ends with it.

It stays where it is while replica groups are replaced, rank 0's among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
import socket
from collections.abc import Callable
from typing import Final, Protocol, cast

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.base import Json
from runfold.workers.capture import Capture
from runfold.workers.errors import LinkError, SpawnError
from runfold.workers.frames import HEADER, frame, read_frame
from runfold.workers.logs import log_bug
from runfold.workers.ports import HeldPort
from runfold.workers.processes import name_process, tell
from runfold.workers.spawner import Child, Spawner

SPEC: Final = b"lighthouse"
FRAME_MAX_BYTES: Final = 64 * 1024
START_TIMEOUT_S: Final = 120.0
"""The lighthouse's module imports torch, from a disk that may be slow."""
AGAIN_AFTER_S: Final = 1.0
STDERR_FD: Final = 2
DEFAULTS: Final[dict[str, Json]] = {"min_replicas": 1}
_LOG: Final = logging.getLogger("runfold.workers")


class Order(msgspec.Struct, frozen=True):
    """Where to listen, and what else torchft's `LighthouseServer` is told."""

    bind: str
    arguments: dict[str, Json]


class Lit(msgspec.Struct, frozen=True):
    """It listens, or why it does not."""

    trouble: str | None = None


# --- in its own process


class _Server(Protocol):
    def shutdown(self) -> None: ...


class _Maker(Protocol):
    def __call__(self, *, bind: str, **arguments: Json) -> _Server: ...


def main(_spec: bytes, fds: dict[str, int]) -> int:
    """Run as the lighthouse, as the child of a rank spawner, until the link to the runner is closed."""
    name_process("runfold-lighthouse")
    link = socket.socket(fileno=fds["link"])
    stream = link.makefile("rb")
    (size,) = HEADER.unpack(stream.read(HEADER.size))
    order = msgspec.msgpack.decode(stream.read(size), type=Order)
    server: _Server | None = None
    with Capture() as starting:
        # Another's code, and loaded here alone.
        make = cast("_Maker", importlib.import_module("torchft.coordination").LighthouseServer)
        server = make(bind=order.bind, **order.arguments)
    trouble = None if starting.error is None else f"{type(starting.error).__name__}: {starting.error}"
    link.sendall(frame(msgspec.msgpack.encode(Lit(trouble)), FRAME_MAX_BYTES))
    if server is None:
        tell(f"runfold: the lighthouse did not start: {trouble}")
        return 1
    stream.read()
    return 0


# --- at the runner


class Lighthouse:
    """Holds a port for one, and keeps one alive there while the assignment says that it is here.

    `say` hears why it is out, each time that it could not be lit: the ranks that look for it fail of that.
    """

    def __init__(self, spawner: Spawner, addr: str, say: Callable[[str], None]) -> None:
        self._spawner = spawner
        self._addr = addr
        self._say = say
        self._held: HeldPort | None = HeldPort(addr)
        self.port = self._held.number
        self._keeping: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it is, for those who look for it."""
        return f"http://{self._addr}:{self.port}"

    def hear(self, assignment: Assignment) -> None:
        """Light it when the ranks are to train and to look for it here."""
        job = assignment.job
        if assignment.want != "train" or job is None or assignment.lighthouse != self.address:
            return
        if self._keeping is None:
            given = job.backend.options.get("lighthouse_kwargs")
            arguments = {**DEFAULTS, **(given if isinstance(given, dict) else {})}
            self._keeping = asyncio.create_task(self._keep(arguments), name="lighthouse")
            self._keeping.add_done_callback(lambda task: log_bug(task, "the lighthouse is not kept"))

    async def close(self) -> None:
        """End it."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._held is not None:
            self._held.close()

    async def _keep(self, arguments: dict[str, Json]) -> None:
        said = ""
        while True:
            try:
                await self._shine(arguments)
            except (SpawnError, LinkError, OSError, asyncio.IncompleteReadError) as error:
                trouble = f"the lighthouse at {self.address} is out, and lit again and again: {error}"
                # What keeps it from starting may do so for as long as the ranks look for it: logged once.
                if said != (said := trouble):
                    _LOG.warning("%s", trouble)
                self._say(trouble)
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _shine(self, arguments: dict[str, Json]) -> None:
        """Start one and wait until it is gone."""
        near, far = socket.socketpair()
        child: Child | None = None
        reader, writer = await asyncio.open_connection(sock=near)
        try:
            with far:
                fds = {"link": far.fileno(), "stdout": STDERR_FD, "stderr": STDERR_FD}
                child = await self._spawner.spawn(SPEC, fds)
            if self._held is not None:
                # It binds by itself: nobody can hand it a socket.
                self._held.close()
                self._held = None
            order = Order(f"{self._addr}:{self.port}", arguments)
            writer.write(frame(msgspec.msgpack.encode(order), FRAME_MAX_BYTES))
            lit = await _lit(reader)
            if lit.trouble is not None:
                raise LinkError(lit.trouble)
            _LOG.info("the lighthouse is at %s", self.address)
            ended = await child.wait()
            raise LinkError(ended.describe())
        finally:
            writer.close()
            if child is not None and child.ended is None:
                with contextlib.suppress(SpawnError):
                    await child.kill(signal.SIGKILL)


async def _lit(reader: asyncio.StreamReader) -> Lit:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return msgspec.msgpack.decode(await read_frame(reader, FRAME_MAX_BYTES), type=Lit)
    except TimeoutError:
        raise LinkError(f"it did not say within {START_TIMEOUT_S:g} s that it listens") from None
