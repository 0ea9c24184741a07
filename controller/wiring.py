"""The ports of a controller on the broker: one connection appends and publishes, another one hears.

A flood of facts on the second cannot delay an append on the first, which keeps nothing while the server is away.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from runfold.controller.ears import Ears, RunEar
from runfold.controller.liveness import Heard
from runfold.controller.ports import Delivered, JobDelivery, Renewal, RunPorts, Unavailable
from runfold.controller.safe import shown
from runfold.events.log import AppendResult, LogUnavailable, Stored
from runfold.events.nats.cells import Cell, Cells, Clash, assignment_cells, owner_cells, status_cells
from runfold.events.nats.collected import settle_collected
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import BrokerClosed, BrokerError, Unanswered
from runfold.events.nats.generations import generation_of, open_log
from runfold.events.nats.inbox import Inbox, InboxMessage, InboxReset, purge_inbox
from runfold.events.nats.jobs import JobMessage, Jobs
from runfold.events.nats.leases import Lease
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.publish import Rejected, publish_acked
from runfold.events.nats.snapshots import RunSnapshots
from runfold.events.nats.unsettled import unsettled_runs

REFUSE_TIMEOUT_S: Final = 5.0
AHEAD_MAX_BYTES: Final = 4 * 1024 * 1024
"""How much of a run's inbox is held here ahead of its loop: after a long time without a controller much more waits."""


_log = logging.getLogger(__name__)


@contextmanager
def _asking() -> Iterator[None]:
    """Make `Unavailable` of everything that the broker may say or leave unsaid instead of an answer."""
    try:
        yield
    except BrokerError as error:
        raise Unavailable(str(error)) from error


class BrokerPorts:
    """See `runfold.controller.ports.Ports`. `close` ends what was opened; the connections are their maker's."""

    def __init__(self, appends: Connection, hears: Connection, leases: Connection, beats: Connection) -> None:
        self._appends, self._hears, self._leases = appends, hears, leases
        self._ears = Ears(beats)
        self._assignments, self._statuses = assignment_cells(appends), status_cells(appends)
        self.jobs = _JobQueue(hears, appends)
        self.owners = _Bucket(owner_cells(appends))

    async def generation(self, run: str) -> int:
        """Return which generation of a run's log is its log now; 0 when it has none."""
        with _asking():
            return await generation_of(self._appends, run)

    async def unsettled(self) -> frozenset[str]:
        """Return the runs whose status tells of no end, or is missing; those that were given back are settled here."""
        with _asking():
            found = await unsettled_runs(self._appends)
            return found - await settle_collected(self._appends, found)

    def lease(self, controller: str) -> _Lease:
        """Return a controller's lease; nothing is said by this."""
        return _Lease(Lease(self._leases, controller, secrets.token_hex(8)))

    def run(self, run: str) -> RunPorts:
        """Return the ports of one run; nothing is opened by this."""
        subject = self._appends.names.subjects.folded(run)

        async def say_folded(data: bytes) -> None:
            try:
                await self._appends.publish(subject, data)
            except BrokerError:
                pass  # nobody could hear it; the next one says it too

        return RunPorts(
            log=_RunLog(self._appends, run),
            inbox=_RunInbox(self._hears, run),
            assignment=_Board(self._assignments, run),
            status=_Board(self._statuses, run),
            snapshots=_Snapshots(RunSnapshots(self._appends, run)),
            say_folded=say_folded,
            ear=_RunEar(self._ears.run(run)),
        )

    async def close(self) -> None:
        """Take no more jobs, and hear nobody."""
        await self.jobs.close()
        await self._ears.close()


class _Lease:
    """A lease whose renewal says what the broker said."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def renew(self) -> Renewal:
        with _asking():
            return await self._lease.renew()

    async def release(self) -> None:
        with _asking():
            await self._lease.release()

    async def living(self) -> frozenset[str]:
        with _asking():
            return await self._lease.living()


class _RunLog:
    """A log in the generation that it had when it was first asked for.

    Its connection may be closed at the end: nobody knows then what was appended.
    """

    def __init__(self, connection: Connection, run: str) -> None:
        self._connection, self._run = connection, run
        self._log: JetStreamLog | None = None

    async def append(self, data: bytes, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult:
        try:
            # Entry 0 begins a log: there is no other to look for.
            log = self._log or (await self._open() if n else self._begin())
            return await log.append(data, n=n, digest=digest, prev=prev, last_sequence=last_sequence)
        except (BrokerClosed, Unanswered) as error:
            raise LogUnavailable(str(error)) from error

    async def read(self, after_sequence: int = 0) -> AsyncIterator[Stored]:
        try:
            log = self._log or await self._open()
            async for stored in log.read(after_sequence):
                yield stored
        except BrokerError as error:
            raise LogUnavailable(str(error)) from error

    async def last_sequence(self) -> int:
        try:
            return await (self._log or await self._open()).last_sequence()
        except BrokerError as error:
            raise LogUnavailable(str(error)) from error

    def _begin(self) -> JetStreamLog:
        self._log = log = JetStreamLog(self._connection, self._run)
        return log

    async def _open(self) -> JetStreamLog:
        self._log = log = await open_log(self._connection, self._run)
        return log


class _RunInbox:
    """A run's inbox; up to `AHEAD_MAX_BYTES` of what arrived wait here until the loop takes them."""

    def __init__(self, connection: Connection, run: str) -> None:
        self._connection, self._run = connection, run
        self._arrived: deque[Delivered] = deque()
        self._ahead_bytes = 0
        self._paused = False
        self._inbox: Inbox | None = None

    async def open(self, cursor: tuple[str, int] | None, arrived: Callable[[], None]) -> None:
        identity = cursor[0] if cursor is not None else ""

        def on_message(message: InboxMessage) -> None:
            known = inbox.identity or identity
            self._arrived.append(Delivered(known, message.sequence, message.subject, message.data))
            self._ahead_bytes += len(message.data)
            if self._ahead_bytes >= AHEAD_MAX_BYTES and not self._paused:
                self._paused = True
                inbox.pause()
            arrived()

        def on_reset(reset: InboxReset) -> None:
            _log.warning("run %s: %s; it is read from its start, sources repeat", self._run, shown(reset.reason))

        await self.close()
        inbox = self._inbox = Inbox(
            self._connection, self._run, cursor=cursor, on_message=on_message, on_reset=on_reset
        )
        inbox.start()

    def take(self) -> Delivered | None:
        if not self._arrived:
            return None
        taken = self._arrived.popleft()
        self._ahead_bytes -= len(taken.data)
        if self._paused and self._ahead_bytes <= AHEAD_MAX_BYTES // 4 and self._inbox is not None:
            self._paused = False
            self._inbox.go_on()
        return taken

    @property
    def caught_up(self) -> bool:
        return self._inbox is not None and self._inbox.caught_up and not self._arrived

    async def purge(self, cursor: tuple[str, int]) -> None:
        identity, up_to = cursor
        if self._inbox is not None and self._inbox.identity == identity:
            with _asking():
                await purge_inbox(self._connection, self._run, up_to)

    async def close(self) -> None:
        if self._inbox is not None:
            await self._inbox.close()
            self._inbox = None


class _RunEar:
    """One run's beats."""

    def __init__(self, ear: RunEar) -> None:
        self._ear = ear

    async def open(self, pool: str, on_tick: Callable[[Heard, float], None]) -> None:
        with _asking():
            await self._ear.open(pool, on_tick)

    async def close(self) -> None:
        await self._ear.close()


class _Board:
    """One key of a store of last values."""

    def __init__(self, cells: Cells, key: str) -> None:
        self._cells, self._key = cells, key

    async def read(self) -> tuple[bytes | None, int]:
        with _asking():
            cell = await self._cells.get(self._key)
            return (None, 0) if cell is None else (cell.data, cell.sequence)

    async def write(self, data: bytes, last_sequence: int) -> int | None:
        with _asking():
            outcome = await self._cells.put(self._key, data, expected=last_sequence)
            return None if isinstance(outcome, Clash) else outcome.sequence


class _Snapshots:
    """A run's snapshots."""

    def __init__(self, snapshots: RunSnapshots) -> None:
        self._snapshots = snapshots

    async def newest(self) -> list[bytes]:
        with _asking():
            return await self._snapshots.newest()

    async def put(self, key: str, data: bytes) -> None:
        with _asking():
            await self._snapshots.put(key, data)


class _Bucket:
    """A bucket of small texts."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def create(self, key: str, value: str) -> bool:
        with _asking():
            outcome = await self._cells.put(key, value.encode(), expected=0)
            if not isinstance(outcome, Clash):
                return True
            cell = await self._cells.get(key)
            if _text(cell) is not None:
                return False
            outcome = await self._cells.put(key, value.encode(), expected=0 if cell is None else cell.sequence)
            return not isinstance(outcome, Clash)

    async def get(self, key: str) -> str | None:
        with _asking():
            return _text(await self._cells.get(key))

    async def replace(self, key: str, value: str, new: str) -> bool:
        with _asking():
            cell = await self._cells.get(key)
            if cell is None or _text(cell) != value:
                return False
            return not isinstance(await self._cells.put(key, new.encode(), expected=cell.sequence), Clash)

    async def delete(self, key: str, value: str) -> bool:
        with _asking():
            cell = await self._cells.get(key)
            if cell is None or _text(cell) != value:
                return False
            return not isinstance(await self._cells.delete(key, expected=cell.sequence), Clash)

    async def entries(self) -> dict[str, str]:
        with _asking():
            texts = {key: _text(cell) for key, cell in (await self._cells.read_all()).items()}
            return {key: text for key, text in texts.items() if text is not None}


def _text(cell: Cell | None) -> str | None:
    return None if cell is None or cell.data is None else cell.data.decode("utf-8", "replace")


class _JobQueue:
    """The queue of jobs, and where their refusals are kept."""

    def __init__(self, hears: Connection, appends: Connection) -> None:
        self._jobs = Jobs(hears)
        self._appends = appends

    async def pull(self) -> JobDelivery | None:
        with _asking():
            message = await self._jobs.next()
            return None if message is None else _Job(self._jobs, message)

    async def refuse(self, sequence: int, record: bytes) -> None:
        with _asking():
            subject = self._appends.names.subjects.refused(sequence)
            answer = await publish_acked(self._appends, subject, record, timeout_s=REFUSE_TIMEOUT_S)
            if isinstance(answer, Rejected):
                raise Unavailable(f"{subject}: {answer.description}")

    async def close(self) -> None:
        try:
            await self._jobs.close()
        except BrokerError:
            pass


class _Job:
    """A job handed out by the queue."""

    def __init__(self, jobs: Jobs, message: JobMessage) -> None:
        self._jobs, self._message = jobs, message
        self.sequence, self.data = message.sequence, message.data

    async def ack(self) -> None:
        with _asking():
            await self._jobs.ack(self._message)

    async def term(self) -> None:
        with _asking():
            await self._jobs.term(self._message)
