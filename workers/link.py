"""The messages between a rank and its runner, and the rank's blocking end of their socket.

```text
rank → runner   Hello, Loaded, Entered, Report*, Collect*, then Returned or Failed
runner → rank   Start, Go or Stop, Collected or Refused for each Collect
```

Both ends are forks of one program, so the format may change from one version to the next.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from typing import Final, Literal

import msgspec

from runfold.events.base import Json
from runfold.events.failures import ErrorInfo
from runfold.workers.errors import LinkError, RunfoldError
from runfold.workers.frames import HEADER
from runfold.workers.limits import LINK_FRAME_MAX_BYTES, LINK_STALL_WARN_S, REPLY_FRAME_MAX_BYTES

CollectiveKind = Literal["start", "barrier", "broadcast_from_rank_zero", "all_gather"]
"""`start` is number 0: the runners hold their ranks until every place is ready."""
RefusalKind = Literal["mismatch", "peer", "too_large", "timeout"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages on the link; fields are written in their order, without names."""


# --- rank to runner


class Hello(Message, frozen=True):
    """The rank process runs and waits for `Start`."""

    pid: int


class Loaded(Message, frozen=True):
    """The entry point is loaded: digest of its file or blob, versions of the frameworks it imported."""

    digest: str | None
    versions: dict[str, str]


class Entered(Message, frozen=True):
    """The rank is about to call the training function; `clock_s` is this machine's monotonic clock."""

    clock_s: float


class Report(Message, frozen=True):
    """One report: index from 0, step if the metrics name one, metrics packed."""

    index: int
    clock_s: float
    step: int | None
    metrics: dict[str, Json]


class Collect(Message, frozen=True):
    """The rank takes part in its `number`-th collective, counted from 1, and waits for the answer."""

    number: int
    kind: CollectiveKind
    value: bytes | None
    timeout_s: float | None


class Returned(Message, frozen=True):
    """The training function returned: its value packed, or pickled when it cannot be packed."""

    clock_s: float
    reports: int
    value: Json
    blob: bytes | None


class Failed(Message, frozen=True):
    """The entry point could not be loaded, or the function raised; `full` is the whole text if `error` is cut."""

    clock_s: float
    reports: int
    error: ErrorInfo
    full: bytes | None


# --- runner to rank


class Start(Message, frozen=True, kw_only=True):
    """Who the rank is and what it runs. A `blob:` entry point comes with its bytes or as a file."""

    run: str
    name: str
    attempt: int
    rank: int
    life: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    entrypoint: str
    config: dict[str, Json] = {}
    env: dict[str, str] = {}
    working_dir: str | None = None
    blob: bytes | None = None
    blob_path: str | None = None
    collective_timeout_s: float | None = None


class Go(Message, frozen=True):
    """All places are ready: enter the training function."""


class Stop(Message, frozen=True):
    """Do not enter it after all: end."""

    reason: str


class Collected(Message, frozen=True):
    """A collective came about: no value, the value of rank 0, or one value a rank in their order."""

    number: int
    values: list[bytes]


class Refused(Message, frozen=True):
    """A collective did not come about: the same answer for all ranks that took part in it."""

    number: int
    kind: CollectiveKind
    error: RefusalKind
    message: str
    missing_ranks: tuple[int, ...] = ()


FromRank = Hello | Loaded | Entered | Report | Collect | Returned | Failed
FromRunner = Start | Go | Stop | Collected | Refused
FROM_RANK: Final[msgspec.msgpack.Decoder[FromRank]] = msgspec.msgpack.Decoder(FromRank)
FROM_RUNNER: Final[msgspec.msgpack.Decoder[FromRunner]] = msgspec.msgpack.Decoder(FromRunner)


class MessageTooLarge(LinkError):
    """A message over the limit; nothing of it was sent."""


class RankLink:
    """The rank's end: sends from any thread, receives in one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(HEADER.size)
        self._sending = False
        self._rest = b""
        # Re-entrant, so that a signal handler that reports while a report is sent gets an error, not a deadlock.
        self.lock = threading.RLock()

    def send(self, message: FromRank, limit_bytes: int = LINK_FRAME_MAX_BYTES) -> None:
        """Send a message; returns when the kernel has it. Waits, and says so, while the runner does not read."""
        with self.lock:
            if self._sending:
                raise RunfoldError("called from a signal handler that interrupted another message to the runner")
            self._sending = True
            try:
                if self._rest:
                    # What an interrupt (Ctrl-C, a raising signal handler) cut off the message before.
                    rest, self._rest = self._rest, b""
                    self._send_rest(memoryview(rest))
                buffer = self._buffer
                self._encoder.encode_into(message, buffer, HEADER.size)
                length = len(buffer) - HEADER.size
                if length > limit_bytes:
                    name = type(message).__name__.lower()
                    raise MessageTooLarge(f"{name}: {length} bytes are over the limit of {limit_bytes} bytes")
                HEADER.pack_into(buffer, 0, length)
                self._send_all(buffer)
            finally:
                self._sending = False
                if len(self._buffer) > 1024 * 1024:
                    self._buffer = bytearray(HEADER.size)

    def _send_all(self, buffer: bytearray) -> None:
        try:
            # One system call in the common case, which no other way of sending with a warning would be.
            sent = self._socket.send(buffer, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise LinkError(f"the runner of this rank is gone: {error.strerror}") from None
        if sent < len(buffer):
            self._send_rest(memoryview(buffer)[sent:])

    def _send_rest(self, rest: memoryview) -> None:
        try:
            while rest:
                if not select.select([], [self._socket], [], LINK_STALL_WARN_S)[1]:
                    sys.stderr.write(
                        f"runfold: the runner has not read for {LINK_STALL_WARN_S:g} s; this rank waits for it, "
                        "nothing is lost\n"
                    )
                    continue
                try:
                    rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    continue
        except OSError as error:
            raise LinkError(f"the runner of this rank is gone: {error.strerror}") from None
        finally:
            self._rest = bytes(rest)
            rest.release()

    def receive(self, timeout_s: float | None) -> FromRunner:
        """Return the next message; `TimeoutError` after `timeout_s` (None: never), `LinkError` at the end."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = HEADER.unpack(self._receive_exactly(HEADER.size, deadline))
        if length > REPLY_FRAME_MAX_BYTES:
            raise LinkError(f"a message of {length} bytes is over the limit of {REPLY_FRAME_MAX_BYTES} bytes")
        return FROM_RUNNER.decode(self._receive_exactly(length, None))

    def _receive_exactly(self, count: int, deadline: float | None) -> bytearray:
        data = bytearray(count)
        with memoryview(data) as view:
            filled = 0
            while filled < count:
                # Only before a message's first byte: one that has begun is read to its end.
                if deadline is not None and filled == 0:
                    left_s = max(0.0, deadline - time.monotonic())
                    if not select.select([self._socket], [], [], left_s)[0]:
                        raise TimeoutError
                received = self._socket.recv_into(view[filled:])
                if received == 0:
                    raise LinkError("the runner of this rank has closed its link")
                filled += received
        return data

    def abandon(self) -> None:
        """Let go of the socket in a process forked from the rank: the link stays the rank's."""
        self._socket.close()
        self.lock = threading.RLock()
