"""Reading a run's log back: chain, heads kept elsewhere, state. What comes after is the loop's `ControllerChanged`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runfold.controller.seed import KnownRun, Over, Quarantined, Unwritten
from runfold.events.entry import GENESIS, Entry, Head, NotAnEntry, decode_entry, hash_entry
from runfold.events.fold import fold
from runfold.events.log import Log, Stored
from runfold.events.state import RunState
from runfold.events.transitions import RunAccepted


class LogDamaged(Over):
    """The log is not the one that was acknowledged; says what is wrong."""

    def __init__(self, reason: str) -> None:
        super().__init__(Quarantined(reason))


@dataclass(slots=True)
class _Chain:
    """A log, read link by link. A message that is not the next link is no entry: it is stepped over and counted."""

    run: str
    state: RunState | None = None
    head: Head | None = None
    accepted_at: str = ""
    last_sequence: int = 0
    stored_at_s: float = 0.0
    strays_count: int = 0

    def add(self, stored: Stored) -> None:
        self.last_sequence = stored.sequence
        entry = self._next_link(stored.data)
        if entry is None:
            self.strays_count += 1
            return
        self.state = fold(self.state, entry)
        self.head = Head(n=entry.n, hash=hash_entry(stored.data))
        self.stored_at_s = stored.stored_at_s
        if entry.n == 0:
            self.accepted_at = entry.at

    def _next_link(self, data: bytes) -> Entry | None:
        try:
            entry = decode_entry(data)
        except NotAnEntry:
            return None
        n, prev = (0, GENESIS) if self.head is None else (self.head.n + 1, self.head.hash)
        return entry if (entry.run, entry.n, entry.prev) == (self.run, n, prev) else None


async def read_run(log: Log, run: str, heads: Iterable[tuple[str, Head]] = ()) -> KnownRun:
    """Return a run as its log has it.

    `heads` are kept elsewhere (by whom, which): the log must reach and contain each. Raises `LogDamaged`, and `Over`
    when no entry was written.
    """
    chain = _Chain(run)
    wanted = list(heads)
    async for stored in log.read():
        chain.add(stored)
        for keeper, head in wanted:
            if chain.head is not None and chain.head.n == head.n and chain.head.hash != head.hash:
                raise LogDamaged(f"entry {head.n} is not the one that the {keeper} was made of")
    for keeper, head in wanted:
        if chain.head is None or chain.head.n < head.n:
            ends = "holds no entry" if chain.head is None else f"ends at entry {chain.head.n}"
            raise LogDamaged(f"the log {ends}, but the {keeper} was made of entry {head.n}")
    if chain.state is None or chain.head is None:
        raise Over(Unwritten())
    return KnownRun(
        state=chain.state,
        head=chain.head,
        accepted_at=chain.accepted_at,
        last_sequence=chain.last_sequence,
        stored_at_s=chain.stored_at_s,
        strays_count=chain.strays_count,
    )


async def read_acceptance(log: Log, run: str) -> RunAccepted | None:
    """Return what entry 0 says of a run's job, None when there is no entry 0."""
    async for stored in log.read():
        try:
            entry = decode_entry(stored.data)
        except NotAnEntry:
            continue
        if (entry.run, entry.n, entry.prev) == (run, 0, GENESIS):
            return next((item for item in entry.transitions if isinstance(item, RunAccepted)), None)
    return None
