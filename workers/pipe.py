"""What a supervisor says to a runner: on a socket pair whose closing is a word as well.

The runner's first frame is its `RunnerSpec`: credentials and secret come this way, after the rank spawner was
forked, so that no rank ever holds them. The runner says nothing: it speaks on the broker. An heir of the supervisor
speaks to the runner in the same way, over the socket at which it knocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Final

import msgspec

from runfold.events.assignment import Mark
from runfold.events.base import Json
from runfold.workers.errors import LinkError
from runfold.workers.frames import HEADER, frame, read_frame

EXIT_CANNOT: Final = 77
"""How a runner ends that cannot go on: no broker, no spec, or no rank spawner. Why stands in the log."""
EXIT_TAKEN: Final = 78
"""How a runner ends that finds its place taken by another one."""
PIPE_FRAME_MAX_BYTES: Final = 64 * 1024
SPEC_TIMEOUT_S: Final = 10.0


class RunnerSpec(msgspec.Struct, frozen=True, kw_only=True, tag="spec"):
    """Who a runner is. `base_dir` is where relative working directories start, `storage_dir` where runs without a
    `storage_path` keep their checkpoints; `addr` where others reach it.

    `places_dir` is where its place's file stands, which says that it holds `slots` with `resources` each. `adopt`: it
    waits for an heir, for `adopt_within_s`, when its supervisor dies.

    On machines other than the supervisor's: `env` is given to its ranks, and holds the values of `secret_env`;
    `runtime_env` is what is prepared there. `held_as`: the name under which the pool's book has its place.
    `tied`: it is killed with who started it, which is told by others: it says nothing of that itself. `pod`: the TPU
    slice that its node is in, and the number of its host there, as far as the pool knows.
    """

    url: str
    namespace: str
    run: str
    attempt: int
    pool: str
    node: str
    source: str
    secret: bytes
    base_dir: str
    storage_dir: str = ""
    addr: str = "127.0.0.1"
    slots: int = 0
    resources: dict[str, float] = {}
    places_dir: str | None = None
    adopt: bool = False
    adopt_within_s: float = 0.0
    secret_env: tuple[str, ...] = ()
    env: dict[str, str] = {}
    runtime_env: dict[str, Json] = {}
    held_as: str = ""
    tied: bool = False
    pod: str = ""
    pod_host: int = 0


class StopNow(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End the ranks, with so much patience, and yourself.

    `said_by`: the assignment that the supervisor has this from, which may be on its way to the runner still, with the
    last tasks that are the runner's to do.
    """

    reason: str
    grace_s: float
    said_by: Mark | None = None


ToRunner = RunnerSpec | StopNow
_LOG: Final = logging.getLogger("runfold.workers")
_DECODER: Final[msgspec.msgpack.Decoder[ToRunner]] = msgspec.msgpack.Decoder(ToRunner)


class RunnerPipe:
    """The supervisor's end. Closing it ends the runner."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock

    def send(self, message: ToRunner) -> None:
        """Say something; nothing happens when the runner is gone, whose end is told elsewhere."""
        try:
            data = frame(msgspec.msgpack.encode(message), PIPE_FRAME_MAX_BYTES)
        except LinkError as error:
            # The runner ends by itself, since it waits for who it is; nobody else would say why.
            _LOG.error("a runner cannot be told its %s: %s", type(message).__name__, error)
            return
        # Far less is ever said than the socket holds.
        with contextlib.suppress(OSError):
            self._socket.send(data)

    async def secret(self) -> bytes:
        """Return the group's secret, as a runner tells it to an heir; `LinkError` when it does not."""
        try:
            (size,) = HEADER.unpack(await self._exactly(HEADER.size))
            return await self._exactly(min(size, PIPE_FRAME_MAX_BYTES))
        except OSError as error:
            raise LinkError(f"a runner did not tell its group's secret: {error}") from None

    async def _exactly(self, size: int) -> bytes:
        loop, data = asyncio.get_running_loop(), b""
        while len(data) < size:
            piece = await loop.sock_recv(self._socket, size - len(data))
            if not piece:
                raise LinkError("a runner closed its door before it had told its group's secret")
            data += piece
        return data

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class SupervisorPipe:
    """The runner's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> SupervisorPipe:
        """Take over the socket."""
        return cls(*await asyncio.open_connection(sock=sock))

    async def receive(self) -> ToRunner | None:
        """Return the next message; None when the supervisor is gone, or says what is no message."""
        try:
            return _DECODER.decode(await read_frame(self._reader, PIPE_FRAME_MAX_BYTES))
        except (asyncio.IncompleteReadError, OSError, msgspec.DecodeError):
            return None

    def tell(self, secret: bytes) -> None:
        """Tell an heir the group's secret."""
        self._writer.write(frame(secret, PIPE_FRAME_MAX_BYTES))

    async def spec(self) -> RunnerSpec:
        """Return who this runner is; raise `LinkError` when nobody says so."""
        try:
            async with asyncio.timeout(SPEC_TIMEOUT_S):
                first = await self.receive()
        except TimeoutError:
            first = None
        if not isinstance(first, RunnerSpec):
            raise LinkError("the supervisor did not say who this runner is")
        return first

    def close(self) -> None:
        """Close it."""
        self._writer.close()
