"""All that one controller says to its broker and hears from it, counted call by call: to fail, or to stand still.

`Wire(world)` is the world's ports as one controller has them. Each call has a number, from 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Literal, TypeVar

from runfold.controller.ports import (
    Board,
    Delivered,
    Inbox,
    JobDelivery,
    Lease,
    Renewal,
    RunPorts,
    Snapshots,
    Unavailable,
)
from runfold.events.log import AppendResult, Log, LogUnavailable, Stored
from support.memory_ports import MemoryWorld

T = TypeVar("T")
Fault = Literal["mute", "deaf"]
"""`mute`: it does not arrive. `deaf`: it is done, and the answer is lost."""


class Wire:
    """One controller's ports on a world."""

    def __init__(self, world: MemoryWorld) -> None:
        self.calls: list[str] = []
        self.fault: Callable[[int, str], Fault | None] = lambda number, what: None
        self.still_from: int | None = None
        """From this call on nothing passes, nor comes back, until `wake`."""
        self.stands_still = asyncio.Event()
        self._awake = asyncio.Event()
        self._awake.set()
        self._world = world
        self.jobs = _Jobs(self)
        self.owners = _Bucket(self)

    @property
    def world(self) -> MemoryWorld:
        """What it leads to."""
        return self._world

    def wake(self) -> None:
        """Let everything pass again."""
        self.still_from = None
        self._awake.set()

    def run(self, run: str) -> RunPorts:
        """Return a run's ports."""
        inner = self._world.run(run)

        async def say_folded(data: bytes) -> None:
            try:
                await self.call("folded", lambda: inner.say_folded(data))
            except Unavailable:
                pass

        return RunPorts(
            log=_Log(self, inner.log),
            inbox=_Inbox(self, inner.inbox),
            assignment=_Board(self, inner.assignment, "assignment"),
            status=_Board(self, inner.status, "status"),
            snapshots=_Snapshots(self, inner.snapshots),
            say_folded=say_folded,
        )

    async def generation(self, run: str) -> int:
        """Return the generation of a run's log."""
        return await self.call("generation", lambda: self._world.generation(run))

    async def unsettled(self) -> frozenset[str]:
        """Return the runs whose status tells of no end."""
        return await self.call("unsettled", self._world.unsettled)

    def lease(self, controller: str) -> Lease:
        """Return a controller's lease."""
        return _Lease(self, self._world.lease(controller))

    async def call(self, what: str, act: Callable[[], Awaitable[T]], error: type[Exception] = Unavailable) -> T:
        """Let a call pass, or not."""
        number = len(self.calls)
        self.calls.append(what)
        fault = self.fault(number, what)
        if number == self.still_from:
            self._awake.clear()
            self.stands_still.set()
        await self._awake.wait()
        if fault == "mute":
            await asyncio.sleep(0)
            raise error(f"{what} was not answered")
        answer = await act()
        await self._awake.wait()
        if fault == "deaf":
            raise error(f"the answer to {what} was lost")
        return answer


class _Log:
    def __init__(self, wire: Wire, log: Log) -> None:
        self._wire, self._log = wire, log

    async def append(self, data: bytes, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult:
        def act() -> Awaitable[AppendResult]:
            return self._log.append(data, n=n, digest=digest, prev=prev, last_sequence=last_sequence)

        return await self._wire.call("append", act, LogUnavailable)

    async def read(self, after_sequence: int = 0) -> AsyncIterator[Stored]:
        async def act() -> list[Stored]:
            return [stored async for stored in self._log.read(after_sequence)]

        for stored in await self._wire.call("read", act, LogUnavailable):
            yield stored

    async def last_sequence(self) -> int:
        return await self._wire.call("last sequence", self._log.last_sequence, LogUnavailable)


class _Inbox:
    def __init__(self, wire: Wire, inbox: Inbox) -> None:
        self._wire, self._inbox = wire, inbox

    async def open(self, cursor: tuple[str, int] | None, arrived: Callable[[], None]) -> None:
        # The consumer is made again and again by what follows the stream, not by whoever asked for it.
        await self._wire.call("listen", lambda: asyncio.sleep(0))
        await self._inbox.open(cursor, arrived)

    def take(self) -> Delivered | None:
        return self._inbox.take()

    @property
    def caught_up(self) -> bool:
        return self._inbox.caught_up

    async def purge(self, cursor: tuple[str, int]) -> None:
        await self._wire.call("purge", lambda: self._inbox.purge(cursor))

    async def close(self) -> None:
        await self._inbox.close()


class _Board:
    def __init__(self, wire: Wire, board: Board, what: str) -> None:
        self._wire, self._board, self._what = wire, board, what

    async def read(self) -> tuple[bytes | None, int]:
        return await self._wire.call(f"read {self._what}", self._board.read)

    async def write(self, data: bytes, last_sequence: int) -> int | None:
        return await self._wire.call(f"write {self._what}", lambda: self._board.write(data, last_sequence))


class _Snapshots:
    def __init__(self, wire: Wire, snapshots: Snapshots) -> None:
        self._wire, self._snapshots = wire, snapshots

    async def newest(self) -> list[bytes]:
        return await self._wire.call("snapshots", self._snapshots.newest)

    async def put(self, key: str, data: bytes) -> None:
        await self._wire.call("put snapshot", lambda: self._snapshots.put(key, data))


class _Bucket:
    def __init__(self, wire: Wire) -> None:
        self._wire, self._bucket = wire, wire.world.owners

    async def create(self, key: str, value: str) -> bool:
        return await self._wire.call("create key", lambda: self._bucket.create(key, value))

    async def get(self, key: str) -> str | None:
        return await self._wire.call("get key", lambda: self._bucket.get(key))

    async def replace(self, key: str, value: str, new: str) -> bool:
        return await self._wire.call("replace key", lambda: self._bucket.replace(key, value, new))

    async def delete(self, key: str, value: str) -> bool:
        return await self._wire.call("delete key", lambda: self._bucket.delete(key, value))

    async def entries(self) -> Mapping[str, str]:
        return await self._wire.call("keys", self._bucket.entries)


class _Lease:
    def __init__(self, wire: Wire, lease: Lease) -> None:
        self._wire, self._lease = wire, lease

    async def renew(self) -> Renewal:
        return await self._wire.call("renew", self._lease.renew)

    async def release(self) -> None:
        await self._wire.call("release", self._lease.release)

    async def living(self) -> frozenset[str]:
        return await self._wire.call("living", self._lease.living)


class _Jobs:
    def __init__(self, wire: Wire) -> None:
        self._wire, self._jobs = wire, wire.world.jobs

    async def pull(self) -> JobDelivery | None:
        # Waiting is no call; taking what came is.
        job = await self._jobs.pull()
        if job is None:
            return None
        taken = job
        await self._wire.call("take job", lambda: asyncio.sleep(0))
        return _Job(self._wire, taken)

    async def refuse(self, sequence: int, record: bytes) -> None:
        await self._wire.call("refuse", lambda: self._jobs.refuse(sequence, record))


class _Job:
    def __init__(self, wire: Wire, job: JobDelivery) -> None:
        self._wire, self._job = wire, job
        self.sequence, self.data = job.sequence, job.data

    async def ack(self) -> None:
        await self._wire.call("ack job", self._job.ack)

    async def term(self) -> None:
        await self._wire.call("term job", self._job.term)
