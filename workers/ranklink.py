"""The rank's blocking end of its link to the runner.

An exception may be raised between any two steps of user code's main thread: Ctrl-C, an alarm whose handler raises.
What the kernel has taken or given is therefore recorded within one C call (`list.extend` over `map`), so that an
interrupted message is finished by the next one, never torn or sent twice, and nothing that has arrived is lost.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import Final

import msgspec

from runfold.workers.errors import LinkError, RunfoldError
from runfold.workers.frames import HEADER
from runfold.workers.limits import LINK_FRAME_MAX_BYTES, LINK_STALL_WARN_S, REPLY_FRAME_MAX_BYTES
from runfold.workers.link import FROM_RUNNER, FromRank, FromRunner, Report
from runfold.workers.processes import tell

_BUFFER_KEPT_BYTES: Final = 1024 * 1024
_NOW: Final = (socket.MSG_DONTWAIT,)
_PIECE_BYTES: Final = (256 * 1024,)


class MessageTooLarge(LinkError):
    """A message over the limit; nothing of it was sent."""


class RankLink:
    """The rank's end: sends from any thread, receives in one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._encoder = msgspec.msgpack.Encoder()
        # The frame being sent, its message, and how many bytes of it the kernel has taken, piece by piece.
        self._frame = bytearray(HEADER.size)
        self._message: FromRank | None = None
        self._taken: list[int] = []
        self._arrived: list[bytes] = []
        self._sending = False
        self._reports = 0
        # Re-entrant, so that a signal handler that reports while a report is sent gets an error, not a deadlock.
        self.lock = threading.RLock()

    @property
    def reports(self) -> int:
        """How many reports have gone out: the index of the next one. Exact also after an interrupt."""
        if self._taken and isinstance(self._message, Report):
            self._reports = self._message.index + 1
        return self._reports

    def count_from(self, first: int) -> None:
        """Let the next report have this number: others of the attempt have reported before."""
        self._reports = first

    def send(self, message: FromRank, limit_bytes: int = LINK_FRAME_MAX_BYTES) -> None:
        """Send a message; returns when the kernel has it. Waits, and says so, while the runner does not read."""
        with self.lock:
            if self._sending:
                raise RunfoldError("called from a signal handler that interrupted another message to the runner")
            self._sending = True
            try:
                if self._taken:
                    self._settle()
                frame = self._frame
                self._encoder.encode_into(message, frame, HEADER.size)
                length = len(frame) - HEADER.size
                if length > limit_bytes:
                    name = type(message).__name__.lower()
                    raise MessageTooLarge(f"{name}: {length} bytes are over the limit of {limit_bytes} bytes")
                HEADER.pack_into(frame, 0, length)
                self._message = message
                self._send_frame()
            finally:
                self._sending = False

    def _settle(self) -> None:
        """Finish the message before, if an interrupt has cut it off, and be ready for the next."""
        left = len(self._frame) - sum(self._taken)
        if left > 0:
            self._send_rest()
        self._reports = self.reports
        self._message = None
        self._taken.clear()
        if len(self._frame) > _BUFFER_KEPT_BYTES:
            self._frame = bytearray(HEADER.size)

    def _send_frame(self) -> None:
        try:
            # One system call in the common case.
            self._taken.extend(map(self._socket.send, (self._frame,), _NOW))
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkError(f"the runner of this rank is gone: {error.strerror}") from None
        if not self._taken or self._taken[0] < len(self._frame):
            self._send_rest()

    def _send_rest(self) -> None:
        try:
            while (sent := sum(self._taken)) < len(self._frame):
                if not select.select([], [self._socket], [], LINK_STALL_WARN_S)[1]:
                    tell(
                        f"runfold: the runner has not read for {LINK_STALL_WARN_S:g} s; this rank waits for it, "
                        "nothing is lost"
                    )
                    continue
                try:
                    with memoryview(self._frame) as view, view[sent : sent + _PIECE_BYTES[0]] as piece:
                        self._taken.extend(map(self._socket.send, (piece,), _NOW))
                except BlockingIOError:
                    continue
        except OSError as error:
            raise LinkError(f"the runner of this rank is gone: {error.strerror}") from None

    def receive(self, timeout_s: float | None) -> FromRunner:
        """Return the next message; `TimeoutError` after `timeout_s` (None: never), `LinkError` at the end."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._fill(HEADER.size, deadline)
        (length,) = HEADER.unpack_from(self._arrived[0])
        if length > REPLY_FRAME_MAX_BYTES:
            raise LinkError(f"a message of {length} bytes is over the limit of {REPLY_FRAME_MAX_BYTES} bytes")
        end = HEADER.size + length
        # One that has begun is read to its end: its sender is not waiting for anything.
        self._fill(end, None)
        whole = self._arrived[0]
        self._arrived = [whole[end:]]
        return FROM_RUNNER.decode(memoryview(whole)[HEADER.size : end])

    def _fill(self, count: int, deadline: float | None) -> None:
        """Read until `count` bytes are there, in one piece."""
        have = sum(map(len, self._arrived))
        while have < count:
            if deadline is not None:
                left_s = max(0.0, deadline - time.monotonic())
                if not select.select([self._socket], [], [], left_s)[0]:
                    raise TimeoutError
            self._arrived.extend(map(self._socket.recv, _PIECE_BYTES))
            if not self._arrived[-1]:
                raise LinkError("the runner of this rank has closed its link")
            have = sum(map(len, self._arrived))
        if len(self._arrived) > 1:
            self._arrived = [b"".join(self._arrived)]

    def abandon(self) -> None:
        """Let go of the socket in a process forked from the rank: the link stays the rank's."""
        self._socket.close()
        self.lock = threading.RLock()
