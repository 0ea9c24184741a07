"""`restore`: a damaged log brought back from an archive, into its next generation.

Everything believable is copied byte for byte: what the archive holds, and what the damaged log holds that follows it.
An entry closes the copy; only with it the generation counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.controller.compose import draft
from runfold.errors import RestoreRefusedError
from runfold.events.assignment import Assignment
from runfold.events.conclusions import LogCopied
from runfold.events.entry import Entry, Head, NotAnEntry, decode_entry, encode_entry, hash_entry
from runfold.events.fold import fold_all
from runfold.events.log import Appended
from runfold.events.nats.api import Api
from runfold.events.nats.cells import assignment_cells, owner_cells, status_cells
from runfold.events.nats.generations import generations, open_log
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.publish import EXPECTED_SUBJECT_SEQUENCE, Acked, publish_acked
from runfold.events.status import Status
from runfold.replay.history import Raw, Where, link_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runfold.events.nats.connection import Connection
    from runfold.replay.history import History, Link

BY: Final = "restore"
"""Who writes the entry that closes a copy, and holds a restored run until a controller takes it up."""

FENCE_TRIES_MAX: Final = 8
PUBLISH_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Restoration:
    """What came of it: the new generation, its head, how many entries were copied, and up to which one was known."""

    run: str
    generation: int
    head: Head
    copied: int
    known_n: int

    @property
    def lost(self) -> int:
        """How many entries, known to have existed, are lost."""
        return max(self.known_n - (self.copied - 1), 0)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What documents outside the log say of a run: the newest head, and the highest epoch."""

    heads: tuple[Head, ...]
    epoch: int


async def restore(admin: Connection, run: str, archive: History) -> Restoration:
    """Bring a run's log back from what an archive, or an exported file, holds of it.

    Raises:
        RestoreRefusedError: the archive is damaged, or of another run; or the log is whole. Nothing was changed.
        BrokerError: the broker did not answer; the same call may be made again.
    """
    _check_archive(archive, run)
    log, shown = await open_log(admin, run), await _shown(admin, run)
    _check_needed(archive, await _raws(log), run, shown)
    await _fence(admin, log)
    raws = [Raw(data=link.data, where=link.where) for link in archive.links] + await _raws(log)
    links = link_up(raws, run).links
    generation = max([log.generation, *await generations(admin, run)]) + 1
    copy = JetStreamLog(admin, run, generation=generation)
    last = await _copy(copy, links)
    copied = LogCopied(generation=generation, source=archive.target, epoch=shown.epoch, by=BY)
    head = await _close(copy, links, last, copied)
    await _offer(admin, run)
    known_n = max([links[-1].entry.n, *(known.n for known in shown.heads)])
    return Restoration(run=run, generation=generation, head=head, copied=len(links), known_n=known_n)


def _check_archive(archive: History, run: str) -> None:
    if archive.run != run:
        raise RestoreRefusedError(f"{archive.target} is of run {archive.run!r}, not of {run!r}; nothing was changed")
    flaws = [damage for damage in archive.damages if damage.flaw != "truncated"]
    if flaws or not archive.links:
        raise RestoreRefusedError(
            f"{archive.target} is damaged itself: {archive.trouble or 'it holds no entry'}. Nothing was changed; "
            f"look for another copy"
        )


def _check_needed(archive: History, raws: Sequence[Raw], run: str, shown: _Shown) -> None:
    """See that there is something to restore: a log that is whole is not replaced."""
    live = link_up(raws, run)
    hashes = [link.hash for link in live.links]
    same = all(one == link.hash for one, link in zip(hashes, archive.links, strict=False))
    reaches = len(hashes) >= len(archive.links) and all(
        head.n < len(hashes) and hashes[head.n] == head.hash for head in shown.heads
    )
    if live.links and not live.damages and same and reaches:
        raise RestoreRefusedError(
            f"the log of {run} is whole: {len(hashes)} entries, as the archive and everything shown of it say. "
            f"Nothing was changed"
        )


async def _shown(admin: Connection, run: str) -> _Shown:
    heads: list[Head] = []
    epochs = [0]
    assignment = await assignment_cells(admin).get(run)
    if assignment is not None and assignment.data:
        made = msgspec.json.decode(assignment.data, type=Assignment)
        heads.append(Head(n=made.n, hash=made.hash))
        epochs.append(made.epoch)
    status = await status_cells(admin).get(run)
    if status is not None and status.data:
        told = msgspec.json.decode(status.data, type=Status)
        heads.append(told.head)
        epochs.append(told.epoch)
    return _Shown(tuple(heads), max(epochs))


async def _raws(log: JetStreamLog) -> list[Raw]:
    """Return what stands in the log; a fence of an earlier try is none of it."""
    found: list[Raw] = []
    async for stored in log.read():
        try:
            entry = decode_entry(stored.data)
        except NotAnEntry:
            entry = None
        if entry is None or entry.inputs or entry.transitions:
            found.append(Raw(data=stored.data, where=Where(file=f"the log of {log.run}", sequence=stored.sequence)))
    return found


async def _fence(admin: Connection, log: JetStreamLog) -> None:
    """Put an empty entry behind the damaged log's last one: a controller that still writes there is refused then.

    One that does not find its last entry there quarantines the run by itself.
    """
    api = Api(admin)
    for _ in range(FENCE_TRIES_MAX):
        last = await api.last_message(admin.names.log, log.subject)
        if last is None:
            return
        try:
            entry = decode_entry(last.data)
        except NotAnEntry:
            return
        if not entry.inputs and not entry.transitions:
            return
        fence = msgspec.structs.replace(entry, n=entry.n + 1, inputs=(), transitions=(), prev=hash_entry(last.data))
        headers = {EXPECTED_SUBJECT_SEQUENCE: str(last.sequence)}
        data = encode_entry(fence)
        if isinstance(await publish_acked(admin, log.subject, data, headers, timeout_s=PUBLISH_TIMEOUT_S), Acked):
            return
    raise RestoreRefusedError(f"a controller keeps writing to the log of {log.run}; nothing was changed")


async def _copy(copy: JetStreamLog, links: Sequence[Link]) -> int:
    sequence = 0
    for link in links:
        sequence = await _append(copy, link.data, link.entry, link.hash, sequence)
    return sequence


async def _close(copy: JetStreamLog, links: Sequence[Link], last: int, copied: LogCopied) -> Head:
    """Append the entry that says that the copy is whole."""
    state = fold_all(link.entry for link in links)
    copied = msgspec.structs.replace(copied, epoch=max(state.epoch, copied.epoch) + 1)
    head = Head(n=state.n, hash=links[-1].hash)
    at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    written = draft(state, head, (copied,), t=state.t, at=at, by=BY, cursor=state.cursor)
    digest = hash_entry(written.data)
    await _append(copy, written.data, written.entry, digest, last)
    return Head(n=written.entry.n, hash=digest)


async def _append(copy: JetStreamLog, data: bytes, entry: Entry, digest: str, last: int) -> int:
    answer = await copy.append(data, n=entry.n, digest=digest, prev=entry.prev, last_sequence=last)
    if isinstance(answer, Appended):
        return answer.sequence
    raise RestoreRefusedError(
        f"somebody else restores {copy.run} at the same time (entry {entry.n} of generation {copy.generation}); "
        f"the copy begun here counts for nothing"
    )


async def _offer(admin: Connection, run: str) -> None:
    """Let a controller find the run: by its key, which nobody who lives holds."""
    owners = owner_cells(admin)
    cell = await owners.get(run)
    if cell is None or cell.data is None:
        # A clash is as good: then a controller has it already.
        await owners.put(run, BY.encode(), expected=0 if cell is None else cell.sequence)
