"""What a run shows of itself: assignment, status and what was folded; only ever what stands in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.latest import Document, Latest
from runfold.controller.ports import RunPorts
from runfold.controller.safe import shown
from runfold.controller.seed import Kept, LimitReached
from runfold.controller.status import status
from runfold.events.assignment import Assignment
from runfold.events.beats import Folded
from runfold.events.entry import Entry, Head
from runfold.events.limits import ASSIGNMENT_MAX_BYTES, FOLDED_EVERY_S, STATUS_EVERY_S, STATUS_MAX_BYTES
from runfold.events.snapshot import StateSnapshot, encode_snapshot, snapshot_keys
from runfold.events.state import AnyState, RunState
from runfold.events.status import Status

PURGE_EVERY_S: Final = 30.0
"""How often the inbox is relieved of what is folded."""

T = TypeVar("T")

_log = logging.getLogger(__name__)
_encoder: Final = msgspec.json.Encoder()
_assignments: Final = msgspec.json.Decoder(Assignment)
_statuses: Final = msgspec.json.Decoder(Status)


class Showing:
    """Publishes for one run. Each document is sent one at a time, the newest only; while it waits the loop goes on."""

    def __init__(self, run: str, ports: RunPorts, *, is_new: bool, fold: str) -> None:
        self.run = run
        self._fold = fold
        self.accepted_at = ""
        self._ports = ports
        last_sequence = 0 if is_new else None
        self._assignment = Document(ports.assignment, order_of_assignment, last_sequence)
        self._status = Document(ports.status, order_of_status, last_sequence)
        self._standing: Assignment | None = None
        self._shown_folded: dict[str, int] = {}
        self._cursor: tuple[str, int] | None = None
        self._purge_next: tuple[str, int] | None = None
        self._assignments = Latest[Assignment](self._put_assignment)
        self._statuses = Latest[tuple[RunState, Head]](self._put_status, STATUS_EVERY_S)
        self._folds = Latest[Folded](self._say_folded, FOLDED_EVERY_S)
        self._purges = Latest[tuple[str, int]](self._purge, PURGE_EVERY_S)
        self._snapshots = Latest[StateSnapshot](self._put_snapshot)

    def serve(self, owner: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Begin to publish, in tasks of `owner`."""
        latest = (self._assignments, self._statuses, self._folds, self._purges, self._snapshots)
        return [owner.create_task(each.serve(), name=f"show {self.run}") for each in latest]

    def tell(self, entry: Entry) -> None:
        """Say what an acknowledged entry decided, to whoever reads the controller's own log."""
        for item in entry.transitions:
            _log.info("run %s: entry %d: %s: %s", self.run, entry.n, type(item).__name__, shown(item.reason))

    def show(self, state: RunState, head: Head, *, decided: bool) -> None:
        """Publish what an acknowledged entry made of the run; `decided`: it held transitions."""
        wanted = assignment(state, head)
        changed = _essence(wanted) != _essence(self._standing)
        if changed:
            self._standing = wanted
            self._assignments.offer(wanted)
        self.show_status(state, head, at_once=decided)
        self.show_folded(state, head, at_once=changed)

    def show_status(self, state: RunState, head: Head, *, at_once: bool = False) -> None:
        """Publish the status of a state."""
        self._statuses.offer((state, head), at_once=at_once)

    def show_folded(self, state: RunState, head: Head, *, at_once: bool = False, again: bool = False) -> None:
        """Say what is folded, when it is news, or `again` to a source that must repeat."""
        folded = {name: source.folded for name, source in state.sources.items()}
        if folded != self._shown_folded or again:
            self._shown_folded = folded
            self._folds.offer(Folded(run=self.run, epoch=state.epoch, n=head.n, folded=folded), at_once=at_once)
        if state.cursor is not None and state.cursor != self._cursor:
            self._cursor = state.cursor
            self._purges.offer(state.cursor)

    def keep(self, state: RunState, head: Head, sequence: int) -> None:
        """Keep a snapshot of the state after an acknowledged entry, now and then."""
        if snapshot_keys(head.n):
            self._snapshots.offer(
                StateSnapshot(fold=self._fold, run=self.run, sequence=sequence, head=head, state=state)
            )

    async def drained(self) -> None:
        """Return once the last assignment and status stand, and the inbox holds nothing that is folded."""
        await asyncio.gather(self._assignments.drained(), self._statuses.drained())
        if self._cursor is not None:
            self._purge_next = self._cursor
            self._purges.offer(self._cursor, at_once=True)
        await self._purges.drained()

    async def kept(self) -> list[Kept]:
        """Return the heads that the documents shown so far were made of, and who keeps each."""
        documents = (
            ("assignment", decoded(_assignments, await self._assignment.read())),
            ("status", decoded(_statuses, await self._status.read())),
        )
        return [Kept(keeper, _head_of(document), document.epoch) for keeper, document in documents if document]

    async def show_quarantine(self, state: AnyState | None, head: Head | None, reason: str) -> None:
        """Put the mark on the newest status; the assignment stays as it is."""
        standing = decoded(_statuses, await self._status.read())
        ours = status(state, head, self.accepted_at) if isinstance(state, RunState) and head is not None else None
        newest = ours if standing is None or (ours is not None and ours.order > standing.order) else standing
        if newest is not None:
            marked = replace(newest, quarantined=reason)
            await self._status.put(_status_bytes(marked), marked.order)

    async def _put_assignment(self, document: Assignment) -> None:
        order = (document.epoch, document.n, document.forced)
        data = _encoder.encode(document)
        if len(data) > ASSIGNMENT_MAX_BYTES:
            raise LimitReached(
                f"the assignment of entry {document.n}: {len(data)} bytes, more than assignment_max_bytes "
                f"({ASSIGNMENT_MAX_BYTES}); the group keeps the one before"
            )
        if not await self._assignment.put(data, order):
            _log.debug("run %s: a newer assignment than ours (epoch %d, entry %d) stands", self.run, *order[:2])

    async def _put_status(self, seen: tuple[RunState, Head]) -> None:
        document = status(*seen, self.accepted_at)
        if not await self._status.put(_status_bytes(document), document.order):
            _log.debug("run %s: a newer status than ours (entry %d) stands", self.run, document.head.n)

    async def _purge(self, cursor: tuple[str, int]) -> None:
        """Purge what was folded when this was last called: a log that loses its end folds the newest facts again."""
        due, self._purge_next = self._purge_next, cursor
        if due is not None:
            await self._ports.inbox.purge(due)

    async def _put_snapshot(self, snapshot: StateSnapshot) -> None:
        data = encode_snapshot(snapshot)
        for key in snapshot_keys(snapshot.head.n) if data is not None else ():
            await self._ports.snapshots.put(key, data or b"")

    async def _say_folded(self, folded: Folded) -> None:
        await self._ports.say_folded(_encoder.encode(folded))


def _status_bytes(document: Status) -> bytes:
    """Return a status's bytes. Of one that is too large is left out what grows with ranks, and what users put there."""
    data = _encoder.encode(document)
    if len(data) <= STATUS_MAX_BYTES:
        return data
    left_out = f"left out here: {len(data)} bytes, more than status_max_bytes ({STATUS_MAX_BYTES}); `replay` shows all"
    warnings = (*document.warnings, f"ranks, metrics and return value are {left_out}")
    return _encoder.encode(replace(document, ranks=(), metrics=None, return_value=None, warnings=warnings))


def decoded(decoder: msgspec.json.Decoder[T], data: bytes | None) -> T | None:
    """Return the document of these bytes, None when they are none."""
    try:
        return None if data is None else decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def order_of_assignment(data: bytes) -> tuple[int, ...] | None:
    """Return what assignments are compared by, or None for bytes that are none."""
    document = decoded(_assignments, data)
    return None if document is None else (document.epoch, document.n, document.forced)


def order_of_status(data: bytes) -> tuple[int, ...] | None:
    """Return what statuses are compared by, or None for bytes that are none."""
    document = decoded(_statuses, data)
    return None if document is None else document.order


def _head_of(document: Assignment | Status) -> Head:
    return document.head if isinstance(document, Status) else Head(n=document.n, hash=document.hash)


def _essence(document: Assignment | None) -> Assignment | None:
    """What of an assignment orders something: which entry it is of, and what was folded by then, orders nothing."""
    return None if document is None else replace(document, n=0, hash="", folded={})
