"""An archive that follows a run's log: what is new is read and written segment by segment, and none of it is kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from runfold.events.entry import GENESIS, Head, NotAnEntry, decode_entry, hash_entry
from runfold.events.limits import ARCHIVE_SEGMENT_MAX_BYTES
from runfold.events.nats.generations import open_log
from runfold.replay.errors import ArchiveRefused
from runfold.replay.segments import Grown, Line, grow, grown_so_far

if TYPE_CHECKING:
    from runfold.client import Client
    from runfold.events.nats.log import JetStreamLog
    from runfold.replay.store import Store


@dataclass(slots=True)
class Found:
    """New entries of a log, chained to those archived; `broken`: what stands there does not follow them."""

    lines: list[Line] = field(default_factory=list)
    size_bytes: int = 0
    broken: bool = False


class Growing:
    """The archive of one run in a store, and how far it goes; made anew after anything went wrong."""

    def __init__(self, client: Client, store: Store, run: str) -> None:
        self._client = client
        self._store = store
        self._run = run
        self._grown: Grown | None = None
        self._log: JetStreamLog | None = None

    async def go_on(self, known_n: int = -1) -> Grown:
        """Write what is new, and return how far the archive goes then; entry `known_n` is known to stand in the log.

        Raises `ArchiveRefused` where the log does not go on, the broker's errors, and `OSError`.
        """
        store, name = self._store, self._run
        grown = self._grown
        if grown is None:
            grown = await asyncio.to_thread(grown_so_far, store, name)
        log = self._log or await open_log(self._client.connection, name)
        while True:
            found = await read_on(log, name, grown)
            if found.broken or (not found.lines and grown.next_n <= known_n):
                # Another generation may have become the log, or its places may have changed: look from the beginning.
                log = await open_log(self._client.connection, name)
                found = await read_on(log, name, msgspec.structs.replace(grown, sequence=0))
            if found.broken:
                raise ArchiveRefused(
                    f"its log does not go on where the archive at {store.url} ends (entry {grown.next_n - 1}): "
                    f"the log is damaged, or it is another run's"
                )
            if not found.lines:
                self._grown, self._log = grown, log
                return grown
            grown = await asyncio.to_thread(grow, store, name, grown, found.lines)


async def read_on(log: JetStreamLog, run: str, grown: Grown) -> Found:
    """Return the entries behind those archived, up to a segment of them."""
    found, head = Found(), grown.head
    n, prev = grown.next_n, GENESIS if head is None else head.hash
    met = head is None
    # From the newest that is archived on: by it the log is known to be the one that was archived.
    async for stored in log.read(max(grown.sequence - 1, 0)):
        try:
            entry = decode_entry(stored.data)
        except NotAnEntry:
            continue
        if entry.run != run:
            continue
        digest = hash_entry(stored.data)
        met = met or (head is not None and (entry.n, digest) == (head.n, head.hash))
        if (entry.n, entry.prev) != (n, prev):
            found.broken = found.broken or entry.n >= n
            continue
        if not entry.inputs and not entry.transitions:
            break  # the mark by which a log is closed before it is restored: not of its history
        found.broken = False
        found.lines.append(Line(data=stored.data, head=Head(n=n, hash=digest), sequence=stored.sequence))
        found.size_bytes += len(stored.data) + 1
        if found.size_bytes >= ARCHIVE_SEGMENT_MAX_BYTES:
            break
        n, prev = n + 1, digest
    if found.lines or not met:
        found.broken = not found.lines
    return found
