"""The asyncio side of a fork server: processes on command, their ends told at once.

```python
spawner = Spawner.fork(rank.main)                      # in a runner, before its event loop
spawner = Spawner.launch("runfold.workers.runner:main", Role.RUNNERS, preload=("nats", "runfold.workers.runner"))
await spawner.start()
child = await spawner.spawn(b"", {"stdout": out, "stderr": err, "link": link})
ended = await child.wait()
await spawner.close()
```
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from runfold.workers import processes, zygote
from runfold.workers.errors import LinkError, SpawnError
from runfold.workers.frames import FrameSplitter, frame
from runfold.workers.limits import (
    SPAWN_FDS_MAX_COUNT,
    SPAWN_SPEC_MAX_BYTES,
    SPAWN_TIMEOUT_S,
    SPAWNER_CLOSE_TIMEOUT_S,
    SPAWNER_START_TIMEOUT_S,
)
from runfold.workers.processes import Exit
from runfold.workers.zygote import (
    COMMAND_MAX_BYTES,
    Check,
    Checked,
    ChildMain,
    Command,
    Event,
    Kill,
    Ready,
    Role,
    Signalled,
    Spawn,
    Spawned,
    SpawnFailed,
    Unfit,
)

_EVENTS: Final[msgspec.msgpack.Decoder[Event]] = msgspec.msgpack.Decoder(Event)
_REAP_EVERY_S: Final = 0.005


class Child:
    """A process that was forked on command."""

    def __init__(self, spawner: Spawner, pid: int, started: float | None) -> None:
        self.pid = pid
        self.started = started
        self._spawner = spawner
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> Exit | None:
        """How it ended; None while it lives."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> Exit:
        """Wait until it has ended; `Exit.known` is false when its fork server died and nobody saw it."""
        return await asyncio.shield(self._ended)

    async def kill(self, number: int = signal.SIGKILL, *, group: bool = True) -> bool:
        """Signal it, and with `group` all that it started; False when it has ended."""
        return await self._spawner.kill(self.pid, number, group=group)

    def resolve(self, ended: Exit) -> None:
        """Called by the spawner, once."""
        if not self._ended.done():
            self._ended.set_result(ended)


class Spawner:
    """A fork server and the processes it has forked. Made before the event loop, started within it."""

    def __init__(self, command: socket.socket, pid: int, program: subprocess.Popen[bytes] | None) -> None:
        self._command = command
        self._program = program
        self._requests = 0
        self._waiting: dict[int, asyncio.Future[Child | bool | str]] = {}
        self._children: dict[int, Child] = {}
        self._sending: asyncio.Lock | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self.pid = pid

    @classmethod
    def fork(cls, child: ChildMain, role: Role = Role.RANKS) -> Spawner:
        """Fork a fork server from this process, with all that it has imported.

        The process must be single-threaded and have no running event loop yet.
        """
        if threading.active_count() > 1:
            raise SpawnError("a fork server is forked before the process starts threads and an event loop")
        ours, theirs = socket.socketpair()
        pid = zygote.fork_server(theirs, [ours], child, role)
        theirs.close()
        return cls(ours, pid, None)

    @classmethod
    def launch(cls, target: str, role: Role, preload: tuple[str, ...] = ()) -> Spawner:
        """Start a fork server as a new program; `target` is the `module:function` its processes run."""
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            code = "from runfold.workers.zygote import main; main()"
            program = subprocess.Popen(
                # -P: the folder it is started in is nobody's place to import from.
                [sys.executable, "-P", "-c", code, str(fd), role.value, target, *preload],
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return cls(ours, program.pid, program)

    async def start(self, timeout_s: float = SPAWNER_START_TIMEOUT_S) -> None:
        """Wait until the fork server can fork; raise `SpawnError` when it ends, must not, or takes too long."""
        loop = asyncio.get_running_loop()
        self._command.setblocking(False)
        self._sending = asyncio.Lock()
        self._ready = loop.create_future()
        self._reader = loop.create_task(self._read(), name="spawner")
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise SpawnError(f"the fork server (process {self.pid}) was not ready within {timeout_s:g} s") from None

    async def spawn(self, spec: bytes, fds: Mapping[str, int]) -> Child:
        """Fork a process that runs the child function with `spec` and copies of these descriptors.

        `stdout` and `stderr` become its streams; stdin is empty. The caller closes its own descriptors.
        """
        if len(spec) > SPAWN_SPEC_MAX_BYTES:
            raise SpawnError(f"{len(spec)} bytes are over the {SPAWN_SPEC_MAX_BYTES} of a spawn's argument")
        if len(fds) > SPAWN_FDS_MAX_COUNT:
            raise SpawnError(f"{len(fds)} descriptors are over the {SPAWN_FDS_MAX_COUNT} of a spawn")
        request = self._next_request()
        answer = await self._ask(Spawn(request, spec, tuple(fds)), request, list(fds.values()))
        if not isinstance(answer, Child):
            raise SpawnError(f"the fork server answered {answer!r} to a spawn")
        return answer

    async def unchanged(self) -> str | None:
        """Return why its check would refuse to fork now; None if it would not."""
        request = self._next_request()
        answer = await self._ask(Check(request), request, [])
        return answer if isinstance(answer, str) else None

    async def kill(self, pid: int, number: int, *, group: bool = True) -> bool:
        """Signal a process of this spawner, or with `group` its whole group; False when it has ended."""
        if pid not in self._children:
            return False
        request = self._next_request()
        answer = await self._ask(Kill(request, pid, number, group), request, [])
        return answer is True

    @property
    def lost(self) -> bool:
        """Whether the fork server is gone: nothing can be started or signalled through it any more."""
        return self._reader is not None and self._reader.done()

    async def close(self) -> None:
        """End the fork server, and with it its ranks; wait for at most `spawner_close_timeout_s`."""
        with contextlib.suppress(OSError):
            self._command.shutdown(socket.SHUT_WR)
        # A rank may have stopped the one that forked it: it must wake to end what it forked.
        if not self._reaped():
            processes.send_signal(self.pid, signal.SIGCONT, group=False)
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=SPAWNER_CLOSE_TIMEOUT_S)
            self._reader.cancel()
            await asyncio.wait([self._reader])
        self._command.close()
        if not await self._gone_within(SPAWNER_CLOSE_TIMEOUT_S if self._reader is None else 1.0):
            os.kill(self.pid, signal.SIGKILL)
            await self._gone_within(1.0)

    async def _gone_within(self, timeout_s: float) -> bool:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self._reaped():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_REAP_EVERY_S)
        return True

    def _reaped(self) -> bool:
        if self._program is not None:
            return self._program.poll() is not None
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    # --- the command socket

    def _next_request(self) -> int:
        self._requests += 1
        return self._requests

    async def _ask(self, command: Command, request: int, fds: list[int]) -> Child | bool | str:
        if self._sending is None or self.lost:
            raise SpawnError(f"the fork server (process {self.pid}) is not running")
        answer: asyncio.Future[Child | bool | str] = asyncio.get_running_loop().create_future()
        self._waiting[request] = answer
        try:
            async with asyncio.timeout(SPAWN_TIMEOUT_S):
                async with self._sending:
                    await self._send(frame(msgspec.msgpack.encode(command), COMMAND_MAX_BYTES), fds)
                return await answer
        except TimeoutError:
            raise SpawnError(
                f"the fork server (process {self.pid}) did not answer within {SPAWN_TIMEOUT_S:g} s"
            ) from None
        except ConnectionError as error:
            raise SpawnError(f"the fork server (process {self.pid}) is gone: {error}") from error
        finally:
            self._waiting.pop(request, None)

    async def _send(self, data: bytes, fds: list[int]) -> None:
        loop = asyncio.get_running_loop()
        sent = 0
        while sent == 0:
            try:
                sent = socket.send_fds(self._command, [data], fds) if fds else self._command.send(data)
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(self._command, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(self._command)
        # The descriptors went with the first byte.
        await loop.sock_sendall(self._command, data[sent:])

    async def _read(self) -> None:
        splitter = FrameSplitter(COMMAND_MAX_BYTES)
        loop = asyncio.get_running_loop()
        reason = "its command socket closed"
        try:
            while data := await loop.sock_recv(self._command, 65536):
                for payload in splitter.feed(data):
                    await self._handle(_EVENTS.decode(payload))
        except (ConnectionError, LinkError, msgspec.DecodeError) as error:
            reason = str(error)
        finally:
            self._give_up(SpawnError(f"the fork server (process {self.pid}) has ended: {reason}"))

    async def _handle(self, event: Event) -> None:
        match event:
            case Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(None)
            case Unfit(reason):
                if self._ready is not None and not self._ready.done():
                    self._ready.set_exception(SpawnError(reason))
            case Spawned(request, pid, started):
                child = self._children[pid] = Child(self, pid, started)
                if not self._answer(request, child):
                    await self._abandon(pid)
            case Signalled(request, delivered):
                self._answer(request, delivered)
            case Checked(request, reason):
                self._answer(request, reason if reason is not None else True)
            case SpawnFailed(request, message):
                if (waiter := self._waiting.get(request)) is not None and not waiter.done():
                    waiter.set_exception(SpawnError(f"a process could not be started: {message}"))
            case Exit(pid=pid):
                if (ended := self._children.pop(pid, None)) is not None:
                    ended.resolve(event)

    def _answer(self, request: int, answer: Child | bool | str) -> bool:
        waiter = self._waiting.get(request)
        if waiter is None or waiter.done():
            return False
        waiter.set_result(answer)
        return True

    async def _abandon(self, pid: int) -> None:
        """End a process whose spawn was given up before it was told: nobody else knows of it."""
        command = Kill(self._next_request(), pid, signal.SIGKILL, group=True)
        if self._sending is not None:
            async with self._sending:
                await self._send(frame(msgspec.msgpack.encode(command), COMMAND_MAX_BYTES), [])

    def _give_up(self, error: SpawnError) -> None:
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(error)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # who waited for it may have gone
        for child in self._children.values():
            child.resolve(Exit(pid=child.pid))
        self._children.clear()
