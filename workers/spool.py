"""What a source has said and the controller has not folded yet: numbered, cut into messages, kept, repeated.

A structure without clock or connection: times are handed in, and what to publish next is a returned value. One message
is outstanding; it is repeated byte for byte until acknowledged. What is acknowledged but not folded is kept and
said again, cut into messages anew from the first missing number, when the controller turns out to lack it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, TypedDict

import msgspec

from runfold.events.facts import AnyFact, Reported
from runfold.events.limits import FACT_MESSAGE_MAX_BYTES, RESEND_AFTER_S, SPOOL_MAX_BYTES
from runfold.workers.errors import RunfoldError

FLUSH_AT_BYTES: Final = 64 * 1024
"""So many bytes of reports go out before `report_flush_s` is over."""
RESEND_AFTER_MAX_S: Final = 60.0
"""Repeats that bring nothing forward become rarer, up to this."""
_ENCODER: Final = msgspec.json.Encoder()
_TAIL: Final = b"]}"


class FactTooLargeError(RunfoldError):
    """A fact that fits in no message of `fact_message_max_bytes`; it was not taken."""


class FactBytes(NamedTuple):
    """A message to publish: the numbers of its facts, their attempt, its bytes."""

    first: int
    last: int
    attempt: int
    data: bytes


class _Said(NamedTuple):
    attempt: int
    data: bytes
    urgent: bool
    said_s: float


class About(TypedDict):
    """What every fact says; see `about`."""

    source: str
    incarnation: int
    number: int
    attempt: int
    clock_s: float


def about(attempt: int, clock_s: float) -> About:
    """Return what every fact says; source, incarnation and number are the spool's to fill in."""
    return About(source="", incarnation=0, number=0, attempt=attempt, clock_s=clock_s)


def is_urgent(fact: AnyFact) -> bool:
    """Whether a fact can change a decision: then it and all before it go out at once."""
    return not isinstance(fact, Reported) or fact.decisive


class Spool:
    """The facts of one source about one run. Numbers begin at 1 once `join` has given the incarnation."""

    def __init__(self, run: str, source: str, *, flush_s: float) -> None:
        self._source = source
        self._head = msgspec.json.encode({"v": 1, "kind": "facts", "run": run}).removesuffix(b"}") + b',"facts":['
        self.flush_s = flush_s
        self._drafts: list[tuple[AnyFact, float]] = []
        self._kept: deque[_Said] = deque()
        self._folded = 0
        self._acked = 0
        self._unsent_bytes = 0
        self._unsent_urgent = 0
        self._outstanding: FactBytes | None = None
        self._again: tuple[int, int] | None = None
        self._moved_s = 0.0
        self._heard_s = -1.0
        self._acked_s = 0.0
        self._resend_after_s = RESEND_AFTER_S
        self.incarnation: int | None = None
        self.size_bytes = 0

    @property
    def number(self) -> int:
        """The highest number given out."""
        return self._folded + len(self._kept)

    @property
    def settled(self) -> bool:
        """Whether everything said is acknowledged by the broker."""
        return not self._drafts and self._outstanding is None and self._again is None and self._acked >= self.number

    @property
    def full(self) -> bool:
        """Whether `spool_max_bytes` is reached: reports must wait."""
        return self.size_bytes >= SPOOL_MAX_BYTES

    def join(self, incarnation: int, now: float) -> None:
        """Take the incarnation that the log has given; what was said before is numbered now."""
        if self.incarnation is not None:
            return
        self.incarnation = incarnation
        drafts, self._drafts = self._drafts, []
        for fact, _ in drafts:
            self.add(fact, now)

    def add(self, fact: AnyFact, now: float) -> None:
        """Say a fact; its source, incarnation and number are filled in here.

        Raises `FactTooLargeError`, and keeps nothing of it, when it fits in no message.
        """
        if self.incarnation is None:
            self._drafts.append((fact, now))
            return
        numbered = msgspec.structs.replace(
            fact, source=self._source, incarnation=self.incarnation, number=self.number + 1
        )
        data = _ENCODER.encode(numbered)
        if (size := len(self._head) + len(data) + len(_TAIL)) > FACT_MESSAGE_MAX_BYTES:
            raise FactTooLargeError(
                f"{type(fact).__name__}: {size} bytes, more than fact_message_max_bytes ({FACT_MESSAGE_MAX_BYTES})"
            )
        urgent = is_urgent(fact)
        self._kept.append(_Said(fact.attempt, data, urgent, now))
        self.size_bytes += len(data)
        self._unsent_bytes += len(data)
        self._unsent_urgent += urgent

    def message(self, now: float) -> FactBytes | None:
        """Return what should be published now: the outstanding message again, or the next one; None for nothing."""
        if self._outstanding is None:
            if self._again is None and self._is_due_again(now):
                self._begin_again()
            if self._again is not None:
                self._outstanding = self._cut(*self._again)
            elif self._is_due(now):
                self._outstanding = self._cut(self._acked + 1, self.number)
        return self._outstanding

    def acked(self, message: FactBytes, now: float) -> None:
        """Note that the broker holds `message`."""
        if message is not self._outstanding:
            return
        self._outstanding = None
        self._acked_s = now
        if self._again is not None:
            following, end = message.last + 1, self._again[1]
            self._again = (following, end) if following <= end else None
        if message.last > self._acked:
            for number in range(max(self._acked, self._folded) + 1, message.last + 1):
                self._count_sent(self._kept[number - self._folded - 1])
            self._acked = message.last

    def folded(self, number: int, now: float) -> None:
        """Take what the controller says it has folded of this source; forget that much."""
        self._heard_s = now
        number = min(number, self.number)
        if number <= self._folded:
            return
        self._moved_s = now
        self._resend_after_s = RESEND_AFTER_S
        while self._folded < number:
            said = self._kept.popleft()
            self._folded += 1
            self.size_bytes -= len(said.data)
            if self._folded > self._acked:
                # Folded without an acknowledgement: it was lost on its way back.
                self._count_sent(said)
        self._acked = max(self._acked, number)
        if self._outstanding is not None and self._outstanding.last <= number:
            self._outstanding = None
        if self._again is not None:
            self._again = (max(self._again[0], number + 1), self._again[1])
            if self._again[0] > self._again[1]:
                self._again = None

    def wake_at(self, now: float) -> float | None:
        """Return when `message` should be asked again although nothing happens; None for never."""
        if self._outstanding is not None or self._again is not None:
            return now
        if self._acked < self.number:
            return now if self._is_due(now) else self._first_unsent().said_s + self.flush_s
        return self._again_at() if self._acked > self._folded else None

    def _count_sent(self, said: _Said) -> None:
        self._unsent_bytes -= len(said.data)
        self._unsent_urgent -= said.urgent

    def _first_unsent(self) -> _Said:
        return self._kept[self._acked - self._folded]

    def _is_due(self, now: float) -> bool:
        if self._acked >= self.number:
            return False
        if self._unsent_urgent or self._unsent_bytes >= FLUSH_AT_BYTES:
            return True
        return now >= self._first_unsent().said_s + self.flush_s

    def _again_at(self) -> float:
        return max(self._acked_s, self._moved_s) + self._resend_after_s

    def _is_due_again(self, now: float) -> bool:
        return self._acked > self._folded and now >= self._again_at()

    def _begin_again(self) -> None:
        """Say again what is acknowledged and not folded: all of it to a controller that is heard, else a sample."""
        self._resend_after_s = min(self._resend_after_s * 2, RESEND_AFTER_MAX_S)
        first = self._folded + 1
        heard = self._heard_s > self._acked_s
        self._again = (first, self._acked if heard else self._cut(first, self._acked).last)

    def _cut(self, first: int, end: int) -> FactBytes:
        """Return the message that begins at `first`: facts of one attempt, up to `end` or the size limit."""
        room = FACT_MESSAGE_MAX_BYTES - len(self._head) - len(_TAIL)
        attempt = self._kept[first - self._folded - 1].attempt
        parts: list[bytes] = []
        number = first
        while number <= end:
            said = self._kept[number - self._folded - 1]
            room -= len(said.data) + bool(parts)
            if said.attempt != attempt or room < 0:
                break
            parts.append(said.data)
            number += 1
        return FactBytes(first, number - 1, attempt, self._head + b",".join(parts) + _TAIL)
