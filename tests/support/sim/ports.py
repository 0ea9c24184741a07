"""A controller's ports over the net. What leaves it is watched: nothing may before its entry is acknowledged to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, TypeVar

import msgspec

from runfold.controller.ears import Ears, RunEar
from runfold.controller.liveness import Heard
from runfold.controller.ports import Delivered, JobDelivery, Renewal, RunPorts, Unavailable
from runfold.events.assignment import Assignment
from runfold.events.beats import Folded
from runfold.events.job import Job
from runfold.events.limits import APPEND_TIMEOUT_S, LEASE_TTL_S
from runfold.events.log import Appended, AppendResult, LogUnavailable, Stored
from runfold.events.status import Status
from support.memory_kept import unsettled_in
from support.memory_leases import MemoryLease
from support.memory_ports import InboxReader
from support.sim.broker import Broker, QueuedJob, done
from support.sim.connection import SimConnection
from support.sim.net import Follower, Net, NoAnswer
from support.sim.process import Process
from support.sim.truth import Truth

T = TypeVar("T")

ASK_TIMEOUT_S: Final = 5.0
LEASE_TIMEOUT_S: Final = LEASE_TTL_S
PULL_EVERY_S: Final = (0.1, 1.0)

_assignments: Final = msgspec.json.Decoder(Assignment)
_statuses: Final = msgspec.json.Decoder(Status)


class SimPorts:
    """Everything one life of a controller speaks through."""

    def __init__(self, who: Process, net: Net, broker: Broker, truth: Truth) -> None:
        self.who, self.net, self.broker, self.truth = who, net, broker, truth
        self.jobs = _Jobs(self)
        self.owners = _Bucket(self)
        self._link = SimConnection(who, net, broker)
        self.ears = Ears(self._link.real())

    def lease(self, controller: str) -> _Lease:
        """Return its lease."""
        return _Lease(self, self.broker.memory.lease(controller))

    def run(self, run: str) -> RunPorts:
        """Return the ports of one run."""
        return RunPorts(
            log=_Log(self, run),
            inbox=_Inbox(self, run),
            assignment=_Shown(self, run),
            status=_Told(self, run),
            snapshots=_Snapshots(self, run),
            say_folded=self._say_folded(run),
            ear=_Ear(self.ears.run(run)),
        )

    async def generation(self, run: str) -> int:
        """Return which generation of a run's log is its log."""
        return await self.ask(lambda: self.broker.of(run).generation)

    async def unsettled(self) -> frozenset[str]:
        """Return the runs whose status tells of no end."""
        return await self.ask(lambda: unsettled_in(self.broker.memory.runs))

    async def ask(self, act: Callable[[], T], *, timeout_s: float = ASK_TIMEOUT_S, stores: bool = False) -> T:
        """Ask the broker; what is not answered in time is `Unavailable`."""
        linger = self.broker.disk_s if stores else _at_once
        try:
            return await self.net.ask(self.who, act, timeout_s=timeout_s, linger=linger)
        except NoAnswer as error:
            raise Unavailable(str(error)) from error

    def _say_folded(self, run: str) -> Callable[[bytes], Awaitable[None]]:
        async def say(data: bytes) -> None:
            folded = msgspec.json.decode(data, type=Folded)
            self.truth.leaves(self.who.boot, run, "folded", folded.n, None)

            await self._link.publish(self._link.names.subjects.folded(run), data)

        return say


def _at_once() -> float:
    return 0.0


class _Log:
    def __init__(self, ports: SimPorts, run: str) -> None:
        self._ports, self._run = ports, run

    async def append(self, data: bytes, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult:
        broker, run = self._ports.broker, self._run
        try:
            answer = await self._ports.ask(
                lambda: broker.append(run, data, n, digest, prev, last_sequence),
                timeout_s=APPEND_TIMEOUT_S,
                stores=True,
            )
        except Unavailable as error:
            raise LogUnavailable(str(error)) from error
        if isinstance(answer, Appended):
            self._ports.truth.heard(self._ports.who.boot, run, data)
        return answer

    async def read(self, after_sequence: int = 0) -> AsyncIterator[Stored]:
        log = self._ports.broker.of(self._run).log.log

        def look() -> list[Stored]:
            return [stored for stored in log.store.of(self._run) if stored.sequence > after_sequence]

        try:
            found = await self._ports.ask(look)
        except Unavailable as error:
            raise LogUnavailable(str(error)) from error
        for stored in found:
            self._ports.truth.heard(self._ports.who.boot, self._run, stored.data)
            yield stored

    async def last_sequence(self) -> int:
        log = self._ports.broker.of(self._run).log.log
        try:
            return await self._ports.ask(lambda: done(log.last_sequence()))
        except Unavailable as error:
            raise LogUnavailable(str(error)) from error


class _Inbox:
    def __init__(self, ports: SimPorts, run: str) -> None:
        self._ports, self._run = ports, run
        self._arrived: deque[Delivered] = deque()
        self._follower: Follower[Delivered] | None = None

    async def open(self, cursor: tuple[str, int] | None, arrived: Callable[[], None]) -> None:
        await self.close()
        broker = self._ports.broker

        def hear(message: Delivered) -> None:
            self._arrived.append(message)
            arrived()

        self._follower = Follower(
            self._ports.net,
            self._ports.who,
            broker.look_inbox(self._run),
            hear,
            identity=cursor[0] if cursor is not None else None,
            position=cursor[1] if cursor is not None else 0,
        )
        broker.follow_inbox(self._run, self._follower)

    def take(self) -> Delivered | None:
        return self._arrived.popleft() if self._arrived else None

    @property
    def caught_up(self) -> bool:
        follower = self._follower
        return follower is not None and follower.caught_up and not self._arrived

    async def purge(self, cursor: tuple[str, int]) -> None:
        inbox = self._ports.broker.of(self._run).inbox
        if self._follower is not None and self._follower.identity == cursor[0]:
            await self._ports.ask(lambda: done(InboxReader(inbox).purge(cursor)))

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None


class _Shown:
    """A run's assignment."""

    def __init__(self, ports: SimPorts, run: str) -> None:
        self._ports, self._run = ports, run

    async def read(self) -> tuple[bytes | None, int]:
        board = self._ports.broker.of(self._run).assignment
        return await self._ports.ask(lambda: (board.data, board.sequence))

    async def write(self, data: bytes, last_sequence: int) -> int | None:
        document, ports = _assignments.decode(data), self._ports
        await ports.who.awake()
        ports.truth.leaves(ports.who.boot, self._run, "the assignment", document.n, document.hash)
        return await ports.ask(lambda: ports.broker.show(self._run, data, last_sequence), stores=True)


class _Told:
    """A run's status."""

    def __init__(self, ports: SimPorts, run: str) -> None:
        self._ports, self._run = ports, run

    async def read(self) -> tuple[bytes | None, int]:
        board = self._ports.broker.of(self._run).status
        return await self._ports.ask(lambda: (board.data, board.sequence))

    async def write(self, data: bytes, last_sequence: int) -> int | None:
        document, ports = _statuses.decode(data), self._ports
        await ports.who.awake()
        # The mark of a quarantine is put on what stands, whoever it is of.
        if document.quarantined is None:
            head = document.head
            ports.truth.leaves(ports.who.boot, self._run, "the status", head.n, head.hash)
        return await ports.ask(lambda: ports.broker.tell_status(self._run, data, last_sequence))


class _Ear:
    """A run's beats, and its pool's."""

    def __init__(self, ear: RunEar) -> None:
        self._ear = ear

    async def open(self, pool: str, on_tick: Callable[[Heard, float], None]) -> None:
        await self._ear.open(pool, on_tick)

    async def close(self) -> None:
        await self._ear.close()


class _Snapshots:
    """A run's states as they were kept: what is kept is not on the disk at once, and nobody waits for it."""

    def __init__(self, ports: SimPorts, run: str) -> None:
        self._ports, self._run = ports, run

    async def newest(self) -> list[bytes]:
        snapshots = self._ports.broker.of(self._run).snapshots
        return await self._ports.ask(lambda: done(snapshots.newest()))

    async def put(self, key: str, data: bytes) -> None:
        broker, snapshots = self._ports.broker, self._ports.broker.of(self._run).snapshots
        await self._ports.ask(lambda: broker.store(lambda: done(snapshots.put(key, data))))


class _Bucket:
    """Who owns which run: as on the broker, a key is read, and changed if its sequence is still the one read."""

    def __init__(self, ports: SimPorts) -> None:
        self._ports = ports

    async def create(self, key: str, value: str) -> bool:
        if await self._put(key, value, 0):
            return True
        text, sequence = await self._read(key)
        return text is None and await self._put(key, value, sequence)

    async def get(self, key: str) -> str | None:
        return (await self._read(key))[0]

    async def replace(self, key: str, value: str, new: str) -> bool:
        text, sequence = await self._read(key)
        return text == value and await self._put(key, new, sequence)

    async def delete(self, key: str, value: str) -> bool:
        text, sequence = await self._read(key)
        return text == value and await self._put(key, None, sequence)

    async def entries(self) -> Mapping[str, str]:
        return await self._ports.ask(self._ports.broker.owners)

    async def _read(self, key: str) -> tuple[str | None, int]:
        return await self._ports.ask(lambda: self._ports.broker.cells.get(key, (None, 0)))

    async def _put(self, key: str, value: str | None, expected: int) -> bool:
        broker = self._ports.broker
        return await self._ports.ask(lambda: broker.put(key, value, expected), stores=True)


class _Lease:
    def __init__(self, ports: SimPorts, lease: MemoryLease) -> None:
        self._ports, self._lease = ports, lease

    async def renew(self) -> Renewal:
        return await self._ports.ask(lambda: done(self._lease.renew()), timeout_s=LEASE_TIMEOUT_S)

    async def release(self) -> None:
        await self._ports.ask(lambda: done(self._lease.release()), timeout_s=LEASE_TIMEOUT_S)

    async def living(self) -> frozenset[str]:
        return await self._ports.ask(lambda: done(self._lease.living()), timeout_s=LEASE_TIMEOUT_S)


class _Jobs:
    def __init__(self, ports: SimPorts) -> None:
        self._ports = ports

    async def pull(self) -> JobDelivery | None:
        queued = await self._ports.ask(self._ports.broker.pull)
        if queued is None:
            await asyncio.sleep(self._ports.net.dice.uniform(*PULL_EVERY_S))
            return None
        return _Job(self._ports, queued)

    async def refuse(self, sequence: int, record: bytes) -> None:
        broker = self._ports.broker
        await self._ports.ask(lambda: broker.store(lambda: broker.jobs.refused.__setitem__(sequence, record)))


class _Job:
    def __init__(self, ports: SimPorts, queued: QueuedJob) -> None:
        self._ports = ports
        self.sequence, self.data = queued.sequence, queued.data

    async def ack(self) -> None:
        run = msgspec.json.decode(self.data, type=Job).id or f"job-{self.sequence}"
        self._ports.truth.leaves(self._ports.who.boot, run, "the acknowledgement of the job", 0, None)
        await self._out()

    async def term(self) -> None:
        await self._out()

    async def _out(self) -> None:
        waiting = self._ports.broker.jobs.waiting
        await self._ports.ask(lambda: waiting.pop(self.sequence, None))
