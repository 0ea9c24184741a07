"""The state of a run on the service at a moment, without reading a long log whole: from the snapshot kept before it."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, assert_never

from runfold.events.entry import Entry, NotAnEntry, decode_entry, hash_entry
from runfold.events.fold import fold
from runfold.events.job import RUN_ID
from runfold.events.snapshot import decode_snapshot, fold_version
from runfold.replay.at import AtClock, AtEntry, AtTime, parse_when, shown_state

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.events.log import Log
    from runfold.events.nats.snapshots import RunSnapshots
    from runfold.events.snapshot import StateSnapshot
    from runfold.locate import Where
    from runfold.replay.at import Snapshot, When


async def live_state_at(where: Where, target: str, when: str) -> Snapshot | None:
    """Return a run's state at a moment, if a snapshot on the service saves reading its log; None otherwise.

    Raises:
        BadMoment: it is no moment.
        UnreachableError: the service that was named does not answer.
    """
    moment = parse_when(when)
    if not RUN_ID.fullmatch(target):
        return None
    for address in where.services():
        from runfold.client import open_client

        async with open_client(address) as client:
            found = await _state_at(client, target, moment)
        if found is not None:
            return found
    return None


async def _state_at(client: Client, run: str, moment: When) -> Snapshot | None:
    from runfold.events.nats.generations import open_log
    from runfold.events.nats.snapshots import RunSnapshots

    log = await open_log(client.connection, run)
    base = await _newest_before(RunSnapshots(client.connection, run), log, run, moment)
    if base is None:
        return None
    state, head, entry = base.state, base.head.hash, await _entry_of(log, base)
    if entry is None:
        return None
    last = True
    async for stored in log.read(base.sequence):
        try:
            later = decode_entry(stored.data)
        except NotAnEntry:
            continue
        if (later.run, later.n, later.prev) != (run, entry.n + 1, head):
            continue
        if _is_after(later, moment):
            last = False
            break
        state, head, entry = fold(state, later), hash_entry(stored.data), later
    if isinstance(moment, AtEntry) and entry.n != moment.n:
        return None  # there is none: who reads the whole log says so
    return shown_state(state, entry, head, last=last)


async def _newest_before(snapshots: RunSnapshots, log: Log, run: str, moment: When) -> StateSnapshot | None:
    """Return the newest snapshot that is not after a moment."""
    fold_now = fold_version(version("runfold"))
    numbers = await snapshots.numbers()
    found: StateSnapshot | None = None
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        data = await snapshots.get(numbers[middle])
        snapshot = decode_snapshot(data, run, fold_now) if data is not None else None
        entry = await _entry_of(log, snapshot) if snapshot is not None else None
        if snapshot is None or entry is None or _is_after(entry, moment):
            high = middle
        else:
            found, low = snapshot, middle + 1
    return found


async def _entry_of(log: Log, snapshot: StateSnapshot) -> Entry | None:
    """Return the entry that a snapshot was made after; None when it does not stand there."""
    async for stored in log.read(snapshot.sequence - 1):
        stands = (stored.sequence, hash_entry(stored.data)) == (snapshot.sequence, snapshot.head.hash)
        return decode_entry(stored.data) if stands else None
    return None


def _is_after(entry: Entry, moment: When) -> bool:
    match moment:
        case AtEntry(n=n):
            return entry.n > n
        case AtClock(t=t):
            return entry.t > t
        case AtTime(at=at):
            return _time_of(entry) > at
        case _:
            assert_never(moment)


def _time_of(entry: Entry) -> datetime:
    try:
        at = datetime.fromisoformat(entry.at)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
