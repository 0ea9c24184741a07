"""Reading a run's log back: chain, heads kept elsewhere, state. What comes after is the loop's `ControllerChanged`.

A long log is read from its newest snapshot on; what lies before it is checked afterwards, while the run goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from runfold.controller.seed import Collected, Kept, KnownRun, Over, Quarantined, Unwritten
from runfold.events.entry import GENESIS, Entry, Head, NotAnEntry, decode_entry, hash_entry, is_link
from runfold.events.fold import fold
from runfold.events.log import Log, Stored
from runfold.events.remains import last_of
from runfold.events.snapshot import StateSnapshot
from runfold.events.state import RunState
from runfold.events.transitions import RunAccepted

CHECK_AFTER_S: Final = 5.0
"""When the check of a log's beginning starts: many runs may have been taken over in the same moment."""

CHECKED_AT_ONCE_COUNT: Final = 1000
CHECK_REST_S: Final = 0.2
"""How long the check of a log's beginning rests after so many entries: runs come first."""


class LogDamaged(Over):
    """The log is not the one that was acknowledged; says what is wrong."""

    def __init__(self, reason: str) -> None:
        super().__init__(Quarantined(reason))


@dataclass(slots=True)
class _Chain:
    """A log, read link by link. A message that is not the next link is no entry: it is stepped over and counted.

    `claimed_n` is the highest number that one of those stepped over behind the last link says to have. `only` is what
    stands there if it is one message, and no beginning.
    """

    run: str
    wanted: frozenset[int]
    state: RunState | None = None
    head: Head | None = None
    last_sequence: int = 0
    stored_at_s: float = 0.0
    strays_count: int = 0
    claimed_n: int = -1
    only: bytes | None = None
    found: dict[int, str] = field(default_factory=dict)

    def add(self, stored: Stored) -> None:
        self.last_sequence = stored.sequence
        entry = self._next_link(stored.data)
        self.only = stored.data if self.strays_count == 0 and self.head is None and entry is None else None
        if entry is None:
            self.strays_count += 1
            return
        self.state = fold(self.state, entry)
        self._stands(Head(n=entry.n, hash=hash_entry(stored.data)), stored)

    def begin(self, snapshot: StateSnapshot, stored: Stored) -> None:
        """Go on from a snapshot, whose entry is the one stored."""
        self.state, self.last_sequence = snapshot.state, stored.sequence
        self._stands(snapshot.head, stored)

    def _stands(self, head: Head, stored: Stored) -> None:
        self.head, self.stored_at_s, self.claimed_n = head, stored.stored_at_s, -1
        if head.n in self.wanted:
            self.found[head.n] = head.hash

    def _next_link(self, data: bytes) -> Entry | None:
        try:
            entry = decode_entry(data)
        except NotAnEntry:
            return None
        n, prev = (0, GENESIS) if self.head is None else (self.head.n + 1, self.head.hash)
        if entry.run == self.run and entry.n >= n:
            self.claimed_n = max(self.claimed_n, entry.n)
        return entry if (entry.run, entry.n, entry.prev) == (self.run, n, prev) else None


async def read_run(log: Log, run: str, kept: Iterable[Kept] = (), snapshots: Sequence[StateSnapshot] = ()) -> KnownRun:
    """Return a run as its log has it, read from the first of `snapshots` whose entry stands.

    `kept` are heads kept elsewhere: the log must reach and contain each. Raises `LogDamaged`, and `Over` when no entry
    was written, or the last one alone is left of a run that was given back.
    """
    wanted = list(kept)
    chain = _Chain(run, frozenset(each.head.n for each in wanted))
    base = await _begin(log, chain, snapshots)
    async for stored in log.read(chain.last_sequence):
        chain.add(stored)
    if chain.only is not None and last_of(run, chain.only) is not None:
        raise Over(Collected())
    if chain.head is not None and chain.claimed_n > chain.head.n:
        raise LogDamaged(
            f"entry {chain.head.n + 1} cannot be read, or does not follow entry {chain.head.n}, "
            f"and entries up to {chain.claimed_n} stand behind it"
        )
    earlier = _check_kept(chain, wanted, base)
    if chain.state is None or chain.head is None:
        raise Over(Unwritten())
    return KnownRun(
        state=chain.state,
        head=chain.head,
        accepted_at=chain.state.accepted_at,
        last_sequence=chain.last_sequence,
        stored_at_s=chain.stored_at_s,
        strays_count=chain.strays_count,
        base=base,
        unchecked=earlier,
    )


async def _begin(log: Log, chain: _Chain, snapshots: Sequence[StateSnapshot]) -> StateSnapshot | None:
    for snapshot in snapshots:
        async for stored in log.read(snapshot.sequence - 1):
            if (stored.sequence, hash_entry(stored.data)) == (snapshot.sequence, snapshot.head.hash):
                chain.begin(snapshot, stored)
                return snapshot
            break
    return None


def _check_kept(chain: _Chain, kept: Iterable[Kept], base: StateSnapshot | None) -> tuple[Kept, ...]:
    """Compare heads kept elsewhere; return those of entries before the snapshot, which were not read."""
    restored = chain.state.restored if chain.state is not None else None
    earlier: list[Kept] = []
    for each in kept:
        n, keeper = each.head.n, each.keeper
        if restored is not None and each.epoch < restored.epoch:
            continue  # of what was lost, and restored as far as could be
        if chain.head is None or chain.head.n < n:
            ends = "holds no entry" if chain.head is None else f"ends at entry {chain.head.n}"
            raise LogDamaged(f"the log {ends}, but the {keeper} was made of entry {n}")
        if n in chain.found and chain.found[n] != each.head.hash:
            raise LogDamaged(f"entry {n} is not the one that the {keeper} was made of")
        if base is not None and n < base.head.n:
            earlier.append(each)
    return tuple(earlier)


async def check_beginning(log: Log, run: str, base: StateSnapshot, kept: Iterable[Kept] = ()) -> None:
    """See that the entries up to a snapshot are the chain it was made of, without haste. Raises `LogDamaged`."""
    await asyncio.sleep(CHECK_AFTER_S)
    wanted = {each.head.n: each for each in kept}
    n, prev = 0, GENESIS
    async for stored in log.read():
        if stored.sequence > base.sequence:
            break
        if is_link(stored.data, run, n, prev):
            prev = hash_entry(stored.data)
            if n in wanted and wanted[n].head.hash != prev:
                raise LogDamaged(f"entry {n} is not the one that the {wanted[n].keeper} was made of")
            n += 1
            if n % CHECKED_AT_ONCE_COUNT == 0:
                await asyncio.sleep(CHECK_REST_S)
    if (n - 1, prev) != (base.head.n, base.head.hash):
        raise LogDamaged(
            f"the chain breaks off at entry {n}, before entry {base.head.n}, up to which it was folded once"
        )


class BeginningLost(Exception):
    """A run of that id existed, and its log does not begin with entry 0 any more: archived and purged, or damaged."""


async def has_ended(log: Log, run: str) -> bool:
    """Whether the last entry of a run's log is the one by which it ended."""
    last = await log.last_sequence()
    if not last:
        return False
    return any([last_of(run, stored.data) is not None async for stored in log.read(last - 1)])


async def read_acceptance(log: Log, run: str) -> RunAccepted | None:
    """Return what entry 0 says of a run's job, None when there never was one. Raises `BeginningLost`."""
    later_n = 0
    async for stored in log.read():
        try:
            entry = decode_entry(stored.data)
        except NotAnEntry:
            continue
        if (entry.run, entry.n, entry.prev) == (run, 0, GENESIS):
            return next((item for item in entry.transitions if isinstance(item, RunAccepted)), None)
        if entry.run == run:
            later_n = max(later_n, entry.n)
    if later_n:
        raise BeginningLost(f"run {run!r} existed: its log still holds entry {later_n}")
    return None
