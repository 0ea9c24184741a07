"""A log in memory, under the port of `log.py`, with knobs for what a broker may do to it. Draws no time of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from runfold.events.base import Value
from runfold.events.entry import hash_entry, is_link
from runfold.events.log import Appended, AppendResult, Damaged, Fenced, LogFull, LogUnavailable, Stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

FaultKind = Literal["mute", "deaf", "full"]


class Fault(Value, frozen=True, kw_only=True):
    """The `at`-th call of a log's handle (from 1) goes wrong, and with `sticky` every later one too.

    `mute`: nothing arrives, nothing is answered. `deaf`: it is done, but the answer is lost. `full`: there is no room
    for an append (a read is answered).
    """

    at: int
    kind: FaultKind
    sticky: bool = False

    def hits(self, call: int) -> bool:
        """Whether this call goes wrong."""
        return call == self.at or (self.sticky and call > self.at)


class MemoryStore:
    """The stream that holds the logs of many runs: one sequence for all, as on the broker."""

    def __init__(self) -> None:
        self.now_s = 1.0
        """The store's clock, moved by whoever simulates time; it stamps what is stored."""
        self.full = False
        self._messages: list[tuple[str, Stored]] = []
        self._last_sequence = 0

    def put(self, run: str, data: bytes) -> int:
        """Store a message, whatever it is: past the port, as a stray or another writer would. Return its sequence."""
        self._last_sequence += 1
        stored = Stored(sequence=self._last_sequence, data=data, stored_at_s=self.now_s)
        self._messages.append((run, stored))
        return stored.sequence

    def of(self, run: str) -> list[Stored]:
        """Return the messages of a run."""
        return [stored for name, stored in self._messages if name == run]

    def cut(self, keep: int) -> None:
        """Lose all but the first messages, the count of sequences too, as damaged storage does."""
        del self._messages[keep:]
        self._last_sequence = self._messages[-1][1].sequence if self._messages else 0

    def rewrite(self, sequence: int, data: bytes) -> None:
        """Change what stands at a sequence, as a bad disk does."""
        self._messages = [
            (run, msgspec.structs.replace(stored, data=data) if stored.sequence == sequence else stored)
            for run, stored in self._messages
        ]


class MemoryLog:
    """One run's log (see `runfold.events.log.Log`); several handles on one store are several writers."""

    def __init__(self, run: str, store: MemoryStore | None = None, *, faults: Iterable[Fault] = ()) -> None:
        self.run = run
        self.store = store if store is not None else MemoryStore()
        self.faults = tuple(faults)
        self.calls_count = 0
        """How many calls were made, for loops that let the n-th go wrong for every n."""

    @property
    def messages(self) -> list[bytes]:
        """The bytes of everything that stands on the run's subject."""
        return [stored.data for stored in self.store.of(self.run)]

    async def append(self, data: bytes, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult:
        """Append one entry's bytes after `last_sequence`; see the port."""
        fault = self._call()
        if fault == "mute":
            raise LogUnavailable(f"the append of entry {n} of {self.run} was not answered")
        judged = self._judge(n=n, digest=digest, prev=prev, last_sequence=last_sequence)
        if judged is None:
            if self.store.full or fault == "full":
                raise LogFull(f"no room for entry {n} of {self.run}: nothing was stored or lost")
            judged = Appended(sequence=self.store.put(self.run, data))
        if fault == "deaf":
            raise LogUnavailable(f"the answer to the append of entry {n} of {self.run} was lost")
        return judged

    async def read(self, after_sequence: int = 0) -> AsyncIterator[Stored]:
        """Yield every stored message after a sequence up to the newest, strays included, in order."""
        self._reach()
        for stored in self.store.of(self.run):
            if stored.sequence > after_sequence:
                yield stored

    async def last_sequence(self) -> int:
        """Return the last sequence on this subject, 0 when there is none."""
        self._reach()
        return self._last_sequence()

    def _last_sequence(self) -> int:
        stored = self.store.of(self.run)
        return stored[-1].sequence if stored else 0

    def _call(self) -> FaultKind | None:
        self.calls_count += 1
        return next((fault.kind for fault in self.faults if fault.hits(self.calls_count)), None)

    def _reach(self) -> None:
        if self._call() in ("mute", "deaf"):
            raise LogUnavailable(f"the log of {self.run} does not answer")

    def _judge(self, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult | None:
        """Read on from the last sequence known: the first valid link decides, strays are stepped over.

        None: the append belongs at the end.
        """
        for stored in self.store.of(self.run):
            if stored.sequence <= last_sequence:
                continue
            if hash_entry(stored.data) == digest:
                return Appended(sequence=stored.sequence)
            if is_link(stored.data, self.run, n, prev):
                return Fenced(sequence=stored.sequence, hash=hash_entry(stored.data))
        last = self._last_sequence()
        return Damaged(expected_sequence=last_sequence, found_sequence=last) if last < last_sequence else None
