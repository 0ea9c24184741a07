"""The runner's hand on its keeper: starts it when it is first needed, asks it one thing at a time, replaces it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from typing import Final

import msgspec

from runfold.events.failures import ErrorInfo
from runfold.workers.errors import SpawnError
from runfold.workers.frames import frame, read_frame
from runfold.workers.keeper import KEEPER_FRAME_MAX_BYTES, SPEC, Answer, Ask
from runfold.workers.spawner import Child, Spawner

TRIES_MAX: Final = 2
"""A keeper that dies over a task is replaced, and asked again so often."""
STDERR_FD: Final = 2
_ANSWERS: Final = msgspec.msgpack.Decoder(Answer)
_LOG: Final = logging.getLogger("runfold.workers")


class Hand:
    """One keeper at most. `ask` never raises but for cancellation."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._child: Child | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def ask(self, ask: Ask, timeout_s: float) -> Answer:
        """Return what came of a task; one that takes longer than `timeout_s` costs the keeper its life.

        So does being cancelled: what is given up is not gone on with.
        """
        async with self._turn:
            for _ in range(TRIES_MAX):
                try:
                    async with asyncio.timeout(timeout_s):
                        return await self._asked(ask)
                except asyncio.CancelledError:
                    # It is to do this no more, and its answer would be taken for that to what is asked next.
                    await self._end()
                    raise
                except TimeoutError:
                    await self._end()
                    return _trouble("TimeoutError", f"not done within {timeout_s:g} s")
                except SpawnError as error:
                    return _trouble("SpawnError", str(error))
                except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError):
                    ended = self._child.ended if self._child is not None else None
                    why = ended.describe() if ended is not None else "its link broke"
                    _LOG.warning("the keeper is gone over task %s: %s", ask.task.id, why)
                    await self._end()
            return _trouble("KeeperLost", "the process that does it ended, twice")

    async def close(self) -> None:
        """End the keeper."""
        await self._end()

    async def _asked(self, ask: Ask) -> Answer:
        reader, writer = self._streams or await self._start()
        writer.write(frame(msgspec.msgpack.encode(ask), KEEPER_FRAME_MAX_BYTES))
        await writer.drain()
        return _ANSWERS.decode(await read_frame(reader, KEEPER_FRAME_MAX_BYTES))

    async def _start(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        near, far = socket.socketpair()
        with far:
            try:
                self._child = await self._spawner.spawn(
                    SPEC, {"link": far.fileno(), "stdout": STDERR_FD, "stderr": STDERR_FD}
                )
            except BaseException:
                near.close()
                raise
        self._streams = await asyncio.open_connection(sock=near)
        return self._streams

    async def _end(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        if self._child is not None and self._child.ended is None:
            with contextlib.suppress(SpawnError):
                await self._child.kill(signal.SIGKILL)
        self._child = None


def _trouble(kind: str, message: str) -> Answer:
    return Answer(error=ErrorInfo(type=kind, message=message, kind="storage"))
