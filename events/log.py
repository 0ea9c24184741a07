"""The log as a port: what the controller's loop needs of it, and nothing more.

Two implementations under one contract suite: `memory.py` and `nats/log.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from runfold.events.base import Value


class Stored(Value, frozen=True, kw_only=True):
    """A message of a log subject: its stream sequence, its exact bytes, the broker's time stamp in seconds."""

    sequence: int
    data: bytes
    stored_at_s: float = 0.0


class Appended(Value, frozen=True, kw_only=True):
    """The bytes stand at this sequence, durably."""

    sequence: int


class Fenced(Value, frozen=True, kw_only=True):
    """Another entry stands where this one belonged: another controller owns the run."""

    sequence: int
    hash: str


class Damaged(Value, frozen=True, kw_only=True):
    """The log is shorter than what it had acknowledged."""

    expected_sequence: int
    found_sequence: int


AppendResult = Appended | Fenced | Damaged


class LogUnavailable(Exception):
    """No definite answer yet: the append may or may not stand. Send the same bytes again."""


class LogFull(Exception):
    """The log refuses more, loudly: nothing was stored, nothing is lost. Wait and send the same bytes again."""


class Log(Protocol):
    """One run's log."""

    async def append(self, data: bytes, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult:
        """Append one entry's bytes after `last_sequence`, the last sequence on this subject (0: none).

        `n` is the entry's number, `digest` the SHA-256 of `data`, `prev` the hash it links to: with these the
        message standing in the way is judged (promise 3). Strays are skipped and appended after.
        Raises `LogUnavailable` when there is no definite answer, `LogFull` when the store refuses. One at a time.
        """
        ...

    def read(self, after_sequence: int = 0) -> AsyncIterator[Stored]:
        """Yield every stored message after a sequence up to the newest, strays included, in order."""
        ...

    async def last_sequence(self) -> int:
        """Return the last sequence on this subject, 0 when there is none."""
        ...
