"""A controller's world in memory: the same ports as on the broker, with knobs for what may go wrong."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from runfold.controller.ports import Delivered, Ear, JobDelivery, RunPorts, Unavailable
from runfold.events.entry import Entry, decode_entry
from runfold.events.log import Appended, AppendResult, LogFull, LogUnavailable, Stored
from runfold.events.memory import FaultKind, MemoryLog, MemoryStore
from support.memory_kept import MemorySnapshots, unsettled_in
from support.memory_leases import MemoryLease, MemoryLeases

IDENTITY = "inbox-1"


@dataclass
class Happened:
    """What left the controller and what was acknowledged to it, in order; for tests of write-ahead."""

    told: list[tuple[str, bytes]] = field(default_factory=list)

    def add(self, what: str, data: bytes) -> None:
        """Note something."""
        self.told.append((what, data))

    def of(self, what: str) -> list[bytes]:
        """Return everything of one kind."""
        return [data for kind, data in self.told if kind == what]


class WatchedLog:
    """A memory log that notes what it acknowledges; `plan` says which tries (from 0) go wrong, and how.

    While `gate` is not set, what was stored is not acknowledged.
    """

    def __init__(self, log: MemoryLog, happened: Happened) -> None:
        self.log = log
        self.plan: dict[int, FaultKind] = {}
        self.tried: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._happened = happened

    async def append(self, data: bytes, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult:
        """Append as planned."""
        fault = self.plan.get(len(self.tried))
        self.tried.append(data)
        await asyncio.sleep(0)
        if fault == "mute":
            raise LogUnavailable("not answered")
        if fault == "full":
            raise LogFull("no room")
        self.log.store.now_s = asyncio.get_running_loop().time()
        answer = await self.log.append(data, n=n, digest=digest, prev=prev, last_sequence=last_sequence)
        await self.gate.wait()
        if fault == "deaf":
            raise LogUnavailable("the answer was lost")
        if isinstance(answer, Appended):
            self._happened.add("entry", data)
        return answer

    async def read(self, after_sequence: int = 0) -> AsyncIterator[Stored]:
        """Read everything after a sequence: what is read stands, as well as what is acknowledged."""
        async for stored in self.log.read(after_sequence):
            self._happened.add("entry", stored.data)
            yield stored

    async def last_sequence(self) -> int:
        """Return the last sequence."""
        return await self.log.last_sequence()

    @property
    def entries(self) -> list[Entry]:
        """Return what stands in the log."""
        return [decode_entry(data) for data in self.log.messages]


class MemoryBoard:
    """One last-value document. `away` is how many calls from now on find no broker."""

    def __init__(self, what: str, happened: Happened) -> None:
        self.data: bytes | None = None
        self.sequence = 0
        self.away = 0
        self.writes_count = 0
        self._what = what
        self._happened = happened

    async def read(self) -> tuple[bytes | None, int]:
        """Return the document and its sequence."""
        await self._reach()
        return self.data, self.sequence

    async def write(self, data: bytes, last_sequence: int) -> int | None:
        """Replace the document of a sequence."""
        await self._reach()
        self.writes_count += 1
        if last_sequence != self.sequence:
            return None
        self.put(data)
        self._happened.add(self._what, data)
        return self.sequence

    def put(self, data: bytes) -> None:
        """Write as another writer."""
        self.data = data
        self.sequence += 1

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise Unavailable("the broker is away")


class MemoryInbox:
    """A run's facts and requests, kept until purged; `readers` are told of what comes."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.identity = IDENTITY
        self.stored: list[Delivered] = []
        self.purged_up_to = 0
        self.last_sequence = 0
        self.readers: list[InboxReader] = []

    def publish(self, subject: str, data: bytes) -> int:
        """Store a message, `subject` without the run's prefix, and deliver it where the inbox is open."""
        self.last_sequence += 1
        message = Delivered(self.identity, self.last_sequence, f"{self.prefix}.{subject}", data)
        self.stored.append(message)
        for reader in self.readers:
            reader.deliver(message)
        return self.last_sequence

    def forget(self) -> None:
        """Be another stream, with nothing in it."""
        self.identity += "x"
        self.stored, self.last_sequence, self.purged_up_to = [], 0, 0
        for reader in self.readers:
            reader.waiting.clear()


class InboxReader:
    """The inbox as one controller has it open."""

    def __init__(self, inbox: MemoryInbox) -> None:
        self.inbox = inbox
        self.waiting: deque[Delivered] = deque()
        self._arrived: Callable[[], None] | None = None

    def deliver(self, message: Delivered) -> None:
        """Hear of a message."""
        if self._arrived is not None:
            self.waiting.append(message)
            self._arrived()

    async def open(self, cursor: tuple[str, int] | None, arrived: Callable[[], None]) -> None:
        """Deliver what comes after the cursor."""
        await asyncio.sleep(0)
        after = cursor[1] if cursor is not None and cursor[0] == self.inbox.identity else 0
        self.waiting = deque(message for message in self.inbox.stored if message.sequence > after)
        self._arrived = arrived
        self.inbox.readers.append(self)
        if self.waiting:
            arrived()

    def take(self) -> Delivered | None:
        """Return the next message."""
        return self.waiting.popleft() if self.waiting else None

    @property
    def caught_up(self) -> bool:
        """Whether everything was taken."""
        return self._arrived is not None and not self.waiting

    async def purge(self, cursor: tuple[str, int]) -> None:
        """Forget what is folded."""
        await asyncio.sleep(0)
        identity, up_to = cursor
        inbox = self.inbox
        if identity != inbox.identity:
            return
        inbox.purged_up_to = max(inbox.purged_up_to, up_to)
        inbox.stored = [message for message in inbox.stored if message.sequence > up_to]

    async def close(self) -> None:
        """Deliver nothing more."""
        await asyncio.sleep(0)
        self._arrived = None
        self.waiting.clear()
        if self in self.inbox.readers:
            self.inbox.readers.remove(self)


class MemoryBucket:
    """Small values by key."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.away = 0

    async def create(self, key: str, value: str) -> bool:
        """Set a free key."""
        await self._reach()
        if key in self.values:
            return False
        self.values[key] = value
        return True

    async def get(self, key: str) -> str | None:
        """Return a value."""
        await self._reach()
        return self.values.get(key)

    async def replace(self, key: str, value: str, new: str) -> bool:
        """Change a key."""
        await self._reach()
        if self.values.get(key) != value:
            return False
        self.values[key] = new
        return True

    async def delete(self, key: str, value: str) -> bool:
        """Free a key."""
        await self._reach()
        if self.values.get(key) != value:
            return False
        del self.values[key]
        return True

    async def entries(self) -> Mapping[str, str]:
        """Return all of it."""
        await self._reach()
        return dict(self.values)

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise Unavailable("the broker is away")


@dataclass
class MemoryJob:
    """A job handed out. `ack_lost`: its acknowledgement does not arrive."""

    sequence: int
    data: bytes
    jobs: MemoryJobs
    ack_lost: bool = False

    async def ack(self) -> None:
        """Take it out of the queue."""
        await asyncio.sleep(0)
        if self.ack_lost:
            raise Unavailable("the broker is away")
        self.jobs.acked.append(self.sequence)

    async def term(self) -> None:
        """Take it out of the queue for good."""
        await asyncio.sleep(0)
        self.jobs.termed.append(self.sequence)


class MemoryJobs:
    """The queue of jobs. With `ack_wait_s` a job that was handed out and not answered comes again."""

    def __init__(self) -> None:
        self.ack_wait_s: float | None = None
        self.acked: list[int] = []
        self.termed: list[int] = []
        self.published: dict[int, bytes] = {}
        self.refusals: dict[int, bytes] = {}
        self.refusals_full = False
        self.last_sequence = 0
        self._queue: asyncio.Queue[MemoryJob] = asyncio.Queue()

    def publish(self, data: bytes, *, again: int | None = None, ack_lost: bool = False) -> int:
        """Put a job into the queue; `again` gives one out again under the sequence that it has."""
        if again is None:
            self.last_sequence += 1
        sequence = self.last_sequence if again is None else again
        self.published[sequence] = data
        self._queue.put_nowait(MemoryJob(sequence, data, self, ack_lost))
        return sequence

    async def pull(self) -> JobDelivery | None:
        """Wait for a job."""
        job = await self._queue.get()
        if self.ack_wait_s is not None:
            asyncio.get_running_loop().call_later(self.ack_wait_s, self._come_again, job)
        return job

    def _come_again(self, job: MemoryJob) -> None:
        if job.sequence not in self.answered:
            self._queue.put_nowait(job)

    async def refuse(self, sequence: int, record: bytes) -> None:
        """Keep a refusal."""
        await asyncio.sleep(0)
        if self.refusals_full:
            raise Unavailable("no room")
        self.refusals[sequence] = record

    @property
    def answered(self) -> list[int]:
        """Every job that is out of the queue."""
        return sorted([*self.acked, *self.termed])


@dataclass
class MemoryRun:
    """The world of one run. `generation` is that of its log."""

    log: WatchedLog
    inbox: MemoryInbox
    assignment: MemoryBoard
    status: MemoryBoard
    happened: Happened
    snapshots: MemorySnapshots = field(default_factory=MemorySnapshots)
    generation: int = 1
    ear: Ear | None = None

    def ports(self) -> RunPorts:
        """Return it as ports."""
        inbox = InboxReader(self.inbox)
        return RunPorts(self.log, inbox, self.assignment, self.status, self.snapshots, self.say_folded(), self.ear)

    def say_folded(self) -> Callable[[bytes], Awaitable[None]]:
        """Return what says `folded`."""

        async def say(data: bytes) -> None:
            await asyncio.sleep(0)
            self.happened.add("folded", data)

        return say


class MemoryWorld:
    """Every port of a controller; outlives the controllers that use it."""

    def __init__(self, namespace: str = "runfold") -> None:
        self.store = MemoryStore()
        self.jobs = MemoryJobs()
        self.owners = MemoryBucket()
        self.leases = MemoryLeases()
        self.runs: dict[str, MemoryRun] = {}
        self._namespace = namespace

    def of(self, run: str) -> MemoryRun:
        """Return a run's world."""
        if run not in self.runs:
            happened = Happened()
            self.runs[run] = MemoryRun(
                log=WatchedLog(MemoryLog(run, self.store), happened),
                inbox=MemoryInbox(f"{self._namespace}.run.{run}"),
                assignment=MemoryBoard("assignment", happened),
                status=MemoryBoard("status", happened),
                happened=happened,
            )
        return self.runs[run]

    async def generation(self, run: str) -> int:
        """Return the generation of a run's log."""
        await asyncio.sleep(0)
        return self.of(run).generation if self.of(run).log.log.messages else 0

    async def unsettled(self) -> frozenset[str]:
        """Return the runs whose status tells of no end."""
        await asyncio.sleep(0)
        return unsettled_in(self.runs)

    def lease(self, controller: str) -> MemoryLease:
        """Return a controller's lease."""
        return self.leases.holder(controller)

    def run(self, run: str) -> RunPorts:
        """Return a run's ports."""
        return self.of(run).ports()
