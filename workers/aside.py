"""One process of user code beside a group, as the supervisor has it: started, asked, made to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import Final, Protocol

import msgspec

from runfold.events.failures import ErrorInfo, FailureKind
from runfold.workers.errors import LinkError, SpawnError
from runfold.workers.frames import frame, read_frame
from runfold.workers.keeper import KEEPER_FRAME_MAX_BYTES
from runfold.workers.oom import oom_kills
from runfold.workers.outside import Order, Question, Said
from runfold.workers.processes import Exit
from runfold.workers.spawner import Child

STDERR_FD: Final = 2
END_TIMEOUT_S: Final = 5.0
"""How long the end of a process is waited for that has closed its link."""
_SAID: Final = msgspec.msgpack.Decoder(Said)


class Spawns(Protocol):
    """What forks it."""

    async def spawn(self, spec: bytes, fds: dict[str, int], /) -> Child:
        """Fork a process; raise `SpawnError` when that cannot be."""
        ...


class Aside:
    """Made by `start`. `ask` returns an answer, or how the process ended instead; it never raises for user code."""

    def __init__(self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self._kills_before = oom_kills()

    @classmethod
    async def start(cls, spawns: Spawns, spec: bytes, order: Order, output: int = STDERR_FD) -> Aside:
        """Fork it and tell it what it is for; it prints to the descriptor `output`. Raises `SpawnError`."""
        near, far = socket.socketpair()
        with far:
            try:
                child = await spawns.spawn(spec, {"link": far.fileno(), "stdout": output, "stderr": output})
            except BaseException:
                near.close()
                raise
        reader, writer = await asyncio.open_connection(sock=near)
        writer.write(frame(msgspec.msgpack.encode(order), KEEPER_FRAME_MAX_BYTES))
        return cls(child, reader, writer)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._child.ended is None and not self._writer.is_closing()

    async def ask(self, question: Question) -> Said:
        """Ask, and return what it says; that it has ended, when it has."""
        try:
            self._writer.write(frame(msgspec.msgpack.encode(question), KEEPER_FRAME_MAX_BYTES))
            return _SAID.decode(await read_frame(self._reader, KEEPER_FRAME_MAX_BYTES))
        except (LinkError, msgspec.DecodeError) as error:
            # The user's code may write to any descriptor.
            await self.end()
            return Said(error=ErrorInfo(type="LinkError", message=f"its answer is no message: {error}", kind="exit"))
        except (OSError, asyncio.IncompleteReadError):
            return Said(error=await self._how_it_ended())

    async def end(self) -> None:
        """Kill it with all that it has started, and let go of it."""
        self._writer.close()
        if self._child.ended is None:
            with contextlib.suppress(SpawnError):
                await self._child.kill(signal.SIGKILL)

    async def _how_it_ended(self) -> ErrorInfo:
        ended = Exit(pid=self._child.pid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                ended = await self._child.wait()
        await self.end()
        oom = ended.signal == signal.SIGKILL and oom_kills() > self._kills_before
        kind: FailureKind = "oom" if oom else "signal" if ended.signal is not None else "exit"
        name = "OutOfMemory" if oom else "ProcessEnded"
        return ErrorInfo(type=name, message=f"its process {ended.describe()}, without an answer", kind=kind)
