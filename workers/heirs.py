"""How a runner that lost its supervisor meets the next one: the runner waits at a socket, the heir knocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Generator
from pathlib import Path
from typing import Final

from runfold.workers.errors import LinkError
from runfold.workers.pipe import RunnerPipe, SupervisorPipe

SOCKET_PATH_MAX_BYTES: Final = 100
"""What every kernel takes as a socket's path."""
KNOCK_TIMEOUT_S: Final = 5.0
_BACKLOG_COUNT: Final = 4
_CREDENTIALS: Final = struct.Struct("3i")


class Door:
    """Where heirs knock, as long as the runner lives. The newest one counts, and is told the group's secret."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret
        self._server: asyncio.Server | None = None
        self._came: asyncio.Queue[SupervisorPipe] = asyncio.Queue(1)
        self._current: SupervisorPipe | None = None

    @classmethod
    async def open(cls, path: Path, secret: bytes = b"") -> Door:
        """Wait for heirs at a path, in a folder that nobody else may enter; `OSError` when that cannot be."""
        door = cls(secret)
        sock = _listening(path)
        try:
            door._server = await asyncio.start_unix_server(door._knocked, sock=sock)
        except OSError:
            sock.close()
            raise
        return door

    def attend(self, pipe: SupervisorPipe) -> None:
        """Have the word of this supervisor count until another knocks."""
        self._current = pipe

    async def heir(self, timeout_s: float) -> SupervisorPipe | None:
        """Wait for an heir; None when none comes in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._came.get()
        except TimeoutError:
            return None

    def close(self) -> None:
        """Wait no more."""
        if self._server is not None:
            self._server.close()
        self._forget_waiting()

    async def _knocked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The word of the supervisor before ends here.
        if self._current is not None:
            self._current.close()
        self._forget_waiting()
        pipe = SupervisorPipe(reader, writer)
        pipe.tell(self._secret)
        self._came.put_nowait(pipe)

    def _forget_waiting(self) -> None:
        while not self._came.empty():
            self._came.get_nowait().close()


async def knock(path: Path, pid: int) -> RunnerPipe:
    """Return the pipe to a runner at its door; `LinkError` when nobody opens, or it is another process."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        async with asyncio.timeout(KNOCK_TIMEOUT_S):
            with _short(path) as name:
                await asyncio.get_running_loop().sock_connect(sock, name)
        if (found := _pid_of(sock)) != pid:
            raise LinkError(f"process {found} waits at the door of the runner {pid}")
    except (OSError, TimeoutError) as error:
        sock.close()
        raise LinkError(f"the runner {pid} cannot be reached at its door: {error}") from None
    return RunnerPipe(sock)


def _listening(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            sock.bind(name)
        sock.listen(_BACKLOG_COUNT)
    except OSError:
        sock.close()
        raise
    return sock


def _pid_of(sock: socket.socket) -> int:
    """Return the process that listens at the other end."""
    pid: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    return pid


@contextlib.contextmanager
def _short(path: Path) -> Generator[str]:
    """Give a path that is short enough for the kernel, for as long as the block lasts."""
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
