"""The fork server: a single-threaded process, its imports done, that forks others on command within milliseconds.

It is used twice. The supervisor starts one as a fresh program and forks *runners* from it (`Role.RUNNERS`);
each runner forks one from itself before it starts its event loop, and that forks its *ranks* (`Role.RANKS`):

```text
supervisor ── fork server (new program) ── runner ── fork server (rank spawner) ── rank ── what user code starts
```

Runners outlive their fork server: the closing of their own pipe to the supervisor ends them. Ranks do not: each
leads its own session, is killed with its whole group when it or its spawner ends, and gets SIGKILL from the
kernel when its spawner dies of whatever. The spawner itself ends when its runner's end of the command socket
closes, or by the kernel's signal when the runner dies. Being single-threaded makes the parent-death signal
right: it is tied to the thread that forked.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from types import FrameType
from typing import Final, NoReturn

import msgspec
import psutil

from runfold.workers import processes
from runfold.workers.capture import Capture
from runfold.workers.frames import HEADER, frame
from runfold.workers.limits import REAP_TIMEOUT_S, SPAWN_FDS_MAX_COUNT, SPAWN_SPEC_MAX_BYTES

ChildMain = Callable[[bytes, dict[str, int]], int]
"""What a forked process runs: (spec, descriptors by name) → exit code. stdin, stdout and stderr are in place."""

_HANDLED: Final = (signal.SIGCHLD, signal.SIGTERM)
COMMAND_MAX_BYTES: Final = SPAWN_SPEC_MAX_BYTES + 4096


class Role(Enum):
    """Whose processes a fork server forks."""

    RUNNERS = "runners"
    RANKS = "ranks"


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Fork. Descriptors come with it in the order of `names`; `stdout` and `stderr` are put in place."""

    request: int
    spec: bytes
    names: tuple[str, ...]


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """Signal a process that was forked here, if it still lives."""

    request: int
    pid: int
    signal: int
    group: bool


class Check(msgspec.Struct, frozen=True, tag="check"):
    """Say whether a fork would be refused now."""

    request: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The imports are done."""


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """A process runs; `started` as told by `processes.start_time`."""

    request: int
    pid: int
    started: float | None


class Checked(msgspec.Struct, frozen=True, tag="checked"):
    """Why a fork would be refused; None if it would not be."""

    request: int
    reason: str | None


class Unfit(msgspec.Struct, frozen=True, tag="unfit"):
    """Nothing may be forked from this process, which ends."""

    reason: str


class SpawnFailed(msgspec.Struct, frozen=True, tag="spawn_failed"):
    """The kernel, or the fork server's check, refused to fork."""

    request: int
    message: str


class Signalled(msgspec.Struct, frozen=True, tag="signalled"):
    """Whether a signal found its process."""

    request: int
    delivered: bool


Command = Spawn | Kill | Check
Event = Ready | Unfit | Spawned | SpawnFailed | Signalled | Checked | processes.Exit
_COMMANDS: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)


class ForkServer:
    """The loop of the fork server, on its end of the command socket; `check` says why not to fork now, if so."""

    def __init__(
        self, command: socket.socket, child: ChildMain, role: Role, check: Callable[[], str | None] = lambda: None
    ) -> None:
        self._command = command
        self._check = check
        self._child = child
        self._role = role
        self._pid = os.getpid()
        self._alive: set[int] = set()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve until the command socket closes or a SIGTERM comes, then end what was forked."""
        for number in _HANDLED:
            signal.signal(number, _wake_only)
        # A Ctrl-C at the terminal is for the supervisor, which then says what should end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # Nothing that was imported is collected, or copied by reference counts of the collector, in the forks.
        gc.collect()
        gc.freeze()
        self._tell(Ready())
        while self._turn():
            pass
        if self._role is Role.RANKS:
            self._end_children()

    def _turn(self) -> bool:
        """Wait for one thing to happen and deal with it; False to end."""
        readable, _, _ = select.select([self._command.fileno(), self._wake_read], [], [])
        if self._wake_read in readable and signal.SIGTERM in os.read(self._wake_read, 4096):
            return False
        self._reap()
        if self._command.fileno() not in readable:
            return True
        received = self._receive()
        if received is None:
            return False
        command, fds = received
        match command:
            case Spawn():
                self._spawn(command, fds)
            case Check(request):
                self._tell(Checked(request, self._check()))
            case Kill(request, pid, number, group):
                # Only what is not reaped yet: its id cannot be another's.
                delivered = pid in self._alive and processes.send_signal(pid, number, group=group)
                self._tell(Signalled(request, delivered))
        return True

    def _receive(self) -> tuple[Command, list[int]] | None:
        try:
            # Descriptors come with the first byte of a message.
            data, fds, _, _ = socket.recv_fds(self._command, HEADER.size, SPAWN_FDS_MAX_COUNT)
            data += self._receive_exactly(HEADER.size - len(data)) if data else b""
            if len(data) < HEADER.size:
                return None
            (length,) = HEADER.unpack(data)
            if length > COMMAND_MAX_BYTES:
                # Nothing behind it can be read: the end of the stream, but for the word about it.
                sys.stderr.write(
                    f"runfold: this fork server ends: a command of {length} bytes is over the limit of "
                    f"{COMMAND_MAX_BYTES} bytes\n"
                )
                return None
            payload = self._receive_exactly(length)
        except ConnectionError:
            return None
        return (_COMMANDS.decode(payload), fds) if len(payload) == length else None

    def _receive_exactly(self, count: int) -> bytes:
        """Return `count` bytes, fewer only at the end of the stream."""
        data = bytearray()
        while len(data) < count and (piece := self._command.recv(count - len(data))):
            data += piece
        return bytes(data)

    def _tell(self, event: Event) -> None:
        # Nobody listens any more: the next turn finds the socket closed.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._command.sendall(frame(msgspec.msgpack.encode(event), COMMAND_MAX_BYTES))

    def _spawn(self, command: Spawn, fds: list[int]) -> None:
        # A signal meant for the fork must not meet the handlers of the server, which it still has at first.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            if (reason := self._check()) is not None:
                self._tell(SpawnFailed(command.request, reason))
                return
            pid = os.fork()
        except OSError as error:
            self._tell(SpawnFailed(command.request, f"fork: {error.strerror}"))
        else:
            if pid == 0:
                _run_and_exit(lambda: self._become(command, fds))
            self._alive.add(pid)
            self._tell(Spawned(command.request, pid, processes.start_time(pid)))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
            for fd in fds:
                os.close(fd)

    def _become(self, command: Spawn, fds: list[int]) -> int:
        """In the fork: let go of everything of the server's, then run what was asked for."""
        if self._role is Role.RANKS:
            processes.die_with_parent(signal.SIGKILL, self._pid)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        # Detached, not closed: the numbers may be somebody else's by the time these objects are collected.
        self._command.detach()
        named = dict(zip(command.names, fds, strict=True))
        _put_standard_streams(named)
        processes.close_other_fds(named.values())
        return self._child(command.spec, named)

    def _reap(self) -> None:
        while (pid := processes.next_dead()) is not None:
            if pid in self._alive and self._role is Role.RANKS:
                # Before reaping, while the id still names this group and no other.
                processes.send_signal(pid, signal.SIGKILL, group=True)
            ended = processes.reap(pid)
            # Others are orphans of ranks, adopted by this process.
            if pid in self._alive:
                self._alive.remove(pid)
                self._tell(ended)

    def _end_children(self) -> None:
        """Kill and reap all, adopted orphans included, for at most `reap_timeout_s`."""
        deadline = time.monotonic() + REAP_TIMEOUT_S
        while time.monotonic() < deadline:
            for pid in self._alive:
                processes.send_signal(pid, signal.SIGKILL, group=True)
            for orphan in psutil.Process().children(recursive=True):
                processes.send_signal(orphan.pid, signal.SIGKILL, group=False)
            self._reap()
            if not psutil.Process().children():
                return
            select.select([self._wake_read], [], [], 0.02)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)


def _wake_only(number: int, frame: FrameType | None) -> None:
    """Let a signal be written to the wake-up descriptor, where the loop reads it."""


def _put_standard_streams(named: dict[str, int]) -> None:
    """Move the descriptors called `stdout` and `stderr` to their numbers and read stdin from nowhere."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if name in named:
            os.dup2(named.pop(name), number)
    sys.stdout, sys.stderr = _by_line(1), _by_line(2)


def _by_line(fd: int) -> io.TextIOWrapper:
    # Written by line, so that what was printed before a crash is seen; the reader expects UTF-8.
    buffer = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _run_and_exit(main: Callable[[], int]) -> NoReturn:
    """Run what a fork is for and end it: the frames above belong to the parent and are never returned to."""
    code = processes.EXIT_BUG
    try:
        with Capture() as captured:
            code = main()
        if captured.error is not None:
            traceback.print_exception(captured.error)
        with Capture():
            processes.finish_like_interpreter()
    finally:
        os._exit(code)


def fork_server(command: socket.socket, others: Sequence[socket.socket], child: ChildMain, role: Role) -> int:
    """Fork a fork server from this process; return its id.

    `command` is its end of the command socket, `others` what it must not hold. The caller must be single-threaded.
    """
    parent_pid = os.getpid()
    pid = os.fork()
    if pid != 0:
        return pid

    def serve() -> int:
        # SIGTERM, not SIGKILL: it still kills the groups of its ranks, then ends.
        processes.die_with_parent(signal.SIGTERM, parent_pid)
        os.setsid()
        processes.name_process("runfold-spawner")
        processes.adopt_orphans()
        for other in others:
            other.detach()
        processes.close_other_fds([command.fileno()])
        ForkServer(command, child, role).run()
        return 0

    _run_and_exit(serve)


def main() -> None:
    """Serve as a program of its own: descriptor, role, `module:function` of the child, modules to import first."""
    fd, role, target, *preload = sys.argv[1:]
    processes.name_process("runfold-zygote")
    if Role(role) is Role.RANKS:
        processes.adopt_orphans()
    for module in preload:
        importlib.import_module(module)
    module_name, _, function = target.partition(":")
    child: ChildMain = getattr(importlib.import_module(module_name), function)
    ForkServer(socket.socket(fileno=int(fd)), child, Role(role)).run()
