"""A controller hosting runs in memory and in virtual time, and a group that plays its part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from runfold.controller.host import Setting
from runfold.controller.main import host_runs
from runfold.controller.ports import Ports
from runfold.controller.seed import Identity
from runfold.events.assignment import Assignment
from runfold.events.beats import Folded
from runfold.events.conclusions import Decider
from runfold.events.config import FailureConfig, ScalingConfig
from runfold.events.entry import Entry, decode_entry, hash_entry
from runfold.events.facts import (
    AnyFact,
    Fact,
    FactMessage,
    Placed,
    RankFailed,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerReady,
)
from runfold.events.job import Job, encode_job
from runfold.events.requests import Join
from runfold.events.status import Status
from runfold.events.subjects import Subjects
from support.memory_ports import Happened, MemoryRun, MemoryWorld
from support.waiting import until

F = TypeVar("F", bound=Fact)
START = datetime(2026, 11, 30, 5, 35, tzinfo=UTC)


def job(run: str = "digits-1", workers: int = 2, max_failures: int = 1) -> Job:
    """Return a small job."""
    return Job(
        id=run,
        entrypoint="examples.digits:train",
        scaling=ScalingConfig(num_workers=workers),
        failure=FailureConfig(max_failures=max_failures),
    )


def at() -> str:
    """Return the time of day of a world in virtual time."""
    now = START + timedelta(seconds=asyncio.get_running_loop().time())
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Hosted:
    """A controller at work; `die` ends it where it stands."""

    def __init__(self, world: Ports, controller: str, environment: tuple[str, ...] = ()) -> None:
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        setting = Setting(
            ports=world,
            me=Identity(controller=controller, decider=Decider(version="0")),
            subjects=Subjects(),
            monotonic=asyncio.get_running_loop().time,
            at=at,
        )
        self.task = asyncio.create_task(
            host_runs(setting, environment, ready=self._ready.set, stop=self._stop), name=controller
        )

    async def ready(self) -> None:
        """Wait until it takes jobs."""
        await self._ready.wait()

    async def die(self) -> None:
        """End it without a word."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def stop(self) -> None:
        """End it in order; raise what went wrong in it."""
        self._stop.set()
        await self.task


@asynccontextmanager
async def hosting(world: Ports, controller: str = "ctl-0", environment: tuple[str, ...] = ()) -> AsyncIterator[Hosted]:
    """Host runs for a while."""
    hosted = Hosted(world, controller, environment)
    await hosted.ready()
    try:
        yield hosted
    finally:
        if not hosted.task.done():
            await hosted.stop()


async def taken(world: MemoryWorld, asked: Job) -> MemoryRun:
    """Publish a job and return its run's world once its assignment is shown."""
    world.jobs.publish(encode_job(asked))
    run = world.of(asked.id or "")
    await until(lambda: run.assignment.data is not None)
    return run


def assignment(run: MemoryRun) -> Assignment:
    """Return the assignment that stands."""
    return msgspec.json.decode(run.assignment.data or b"", type=Assignment)


def status(run: MemoryRun) -> Status:
    """Return the status that stands."""
    return msgspec.json.decode(run.status.data or b"", type=Status)


async def shown(run: MemoryRun, held: Callable[[Status], bool]) -> Status:
    """Wait for a status."""
    await until(lambda: run.status.data is not None and held(status(run)))
    return status(run)


class Source:
    """A source that joins a run and numbers its facts."""

    def __init__(self, run: MemoryRun, name: str) -> None:
        self.run = run
        self.name = name
        self.incarnation = 0
        self.number = 0
        self.said: list[tuple[str, bytes]] = []

    async def join(self, boot: str = "b1") -> None:
        """Ask for an incarnation and wait for it."""
        self.run.inbox.publish("request.join", msgspec.json.encode(Join(id=boot, source=self.name, boot=boot)))
        await until(lambda: any(given.boot == boot for given in assignment(self.run).joined))
        self.incarnation = next(g.incarnation for g in assignment(self.run).joined if g.source == self.name)
        self.number = 0

    def fact(self, kind: type[F], attempt: int = 1, **fields: object) -> F:
        """Make the next fact."""
        self.number += 1
        known: dict[str, object] = {"source": self.name, "incarnation": self.incarnation, "number": self.number}
        return msgspec.convert({"kind": kind.__struct_config__.tag, "attempt": attempt, **known, **fields}, kind)

    def say(self, *facts: AnyFact) -> None:
        """Publish facts in one message."""
        name = self.run.log.log.run
        self.publish(f"fact.{facts[-1].attempt}.{self.name}", msgspec.json.encode(FactMessage(run=name, facts=facts)))

    def publish(self, subject: str, data: bytes) -> None:
        """Publish a message, and remember it."""
        self.said.append((subject, data))
        self.run.inbox.publish(subject, data)


class Group:
    """A supervisor and a runner that train one run on one node."""

    def __init__(self, run: MemoryRun, workers: int = 2) -> None:
        self.run = run
        self.workers = workers
        self.pool = Source(run, "pool-local")
        self.runner = Source(run, "local")

    async def trains(self) -> None:
        """Bring the first attempt to RUNNING."""
        await self.pool.join("p1")
        self.pool.say(self.pool.fact(Placed, places=[{"node": "local", "slots": self.workers}]))
        await self.runner.join("r1")
        self.runner.say(self.runner.fact(RunnerReady, node="local", addr="127.0.0.1", port=4000))
        await until(lambda: assignment(self.run).want == "train")
        await self.starts(1)

    async def starts(self, attempt: int) -> None:
        """Start every rank of an attempt."""
        await until(lambda: (assignment(self.run).want, assignment(self.run).attempt) == ("train", attempt))
        ranks = range(self.workers)
        self.runner.say(*[self.runner.fact(RankStarted, attempt, rank=r, life=1, pid=9, next_port=4001) for r in ranks])
        await shown(self.run, lambda now: (now.state, now.attempt) == ("running", attempt))

    def reports(self, count: int, attempt: int = 1) -> None:
        """Report some steps of rank 0, one message each."""
        for index in range(count):
            self.runner.say(
                self.runner.fact(Reported, attempt, rank=0, life=1, index=index, metrics={"loss": 1 / (index + 1)})
            )

    def fails(self, attempt: int = 1) -> None:
        """Let rank 1 raise."""
        error = {"type": "RuntimeError", "message": "boom", "kind": "user"}
        self.runner.say(self.runner.fact(RankFailed, attempt, rank=self.workers - 1, life=1, error=error))

    async def finishes(self, attempt: int = 1) -> None:
        """Return from every rank and release the group."""
        ranks = range(self.workers)
        self.runner.say(*[self.runner.fact(RankReturned, attempt, rank=r, life=1, reports=0) for r in ranks])
        await until(lambda: assignment(self.run).want == "stop")
        self.pool.say(self.pool.fact(Released, attempt))
        await until(lambda: assignment(self.run).want == "gone")


def chained(run: MemoryRun) -> list[Entry]:
    """Return the entries, once sure that each links to the one before and that time does not run back."""
    entries = run.log.entries
    for before, after, data in zip(entries, entries[1:], run.log.log.messages, strict=False):
        assert after.prev == hash_entry(data)
        assert (after.n, after.t >= before.t) == (before.n + 1, True)
    return entries


def heads_acknowledged(happened: Happened) -> None:
    """Write-ahead: whatever was shown was made of an entry acknowledged before it (promise 2)."""
    heads: set[tuple[int, str]] = set()
    for what, data in happened.told:
        if what == "entry":
            entry = decode_entry(data)
            heads.add((entry.n, hash_entry(data)))
        elif what == "assignment":
            made_of = msgspec.json.decode(data, type=Assignment)
            assert (made_of.n, made_of.hash) in heads
        elif what == "status":
            head = msgspec.json.decode(data, type=Status).head
            assert (head.n, head.hash) in heads
        else:
            assert msgspec.json.decode(data, type=Folded).n in {n for n, _ in heads}
