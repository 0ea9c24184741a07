"""Runs without processes: supervisors and runners that say what real ones would, for loads no machine could train."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.base import Json
from runfold.events.beats import RankBeat, RunnerBeat
from runfold.events.facts import (
    AnyFact,
    FactMessage,
    Placed,
    PlaceOffer,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerReady,
)
from runfold.events.nats.cells import Cell, assignment_cells
from runfold.events.nats.connection import Connection
from runfold.events.nats.consume import Follower
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.publish import publish_acked
from runfold.events.requests import Join

ANSWER_TIMEOUT_S = 30.0
AGAIN_AFTER_S = 0.2


@dataclass
class Source:
    """A source of facts of one run: it has joined once `incarnation` is set."""

    run: "FakeRun"
    name: str
    incarnation: int = 0
    number: int = 0
    speaking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def join(self) -> None:
        """Ask for an incarnation."""
        join = Join(id=f"boot-{self.name}", source=self.name, boot=f"boot-{self.name}")
        await self.run.publish(self.run.subjects.request(self.run.name, "join"), msgspec.json.encode(join))

    async def say(self, attempt: int, facts: Iterable[Callable[[int, int], AnyFact]]) -> None:
        """Publish facts in one message, each made of its incarnation and number."""
        async with self.speaking:
            made: list[AnyFact] = []
            for make in facts:
                self.number += 1
                made.append(make(self.incarnation, self.number))
            data = msgspec.json.encode(FactMessage(run=self.run.name, facts=tuple(made)))
            await self.run.publish(self.run.subjects.fact(self.run.name, attempt, self.name), data)


class FakeRun:
    """One run: its pool's supervisor and a runner for each of its nodes."""

    def __init__(self, connection: Connection, name: str, nodes: dict[str, int], pool: str) -> None:
        self.name = name
        self.nodes = nodes
        self.subjects = connection.names.subjects
        self.at_work = asyncio.Event()
        self.gone = asyncio.Event()
        self.pool = Source(self, f"pool-{pool}")
        self.runners = {node: Source(self, node) for node in nodes}
        self.index = -1
        self._connection = connection
        self._newest: Assignment | None = None
        self._done: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def publish(self, subject: str, data: bytes) -> None:
        """Publish until acknowledged."""
        while True:
            try:
                await publish_acked(self._connection, subject, data, timeout_s=ANSWER_TIMEOUT_S)
            except Unanswered:
                await asyncio.sleep(AGAIN_AFTER_S)
            else:
                return

    def hear(self, assignment: Assignment) -> None:
        """Do what an assignment wants, once."""
        if not assignment.newer_than(self._newest):
            return
        self._newest = assignment
        for given in assignment.joined:
            for source in (self.pool, *self.runners.values()):
                if given.source == source.name:
                    source.incarnation = given.incarnation
        self._once("join", self._join())
        if self.pool.incarnation and assignment.want == "place":
            self._once("place", self._place())
        for node, source in self.runners.items():
            if source.incarnation and "place" in self._done:
                self._once(f"ready {node}", self._ready(node, source))
        if assignment.want == "train":
            self._once("train", self._train(assignment))
        if assignment.want == "stop":
            self._once("stop", self._stop())
        if assignment.want == "gone":
            self.gone.set()

    def _once(self, what: str, work: Coroutine[None, None, None]) -> None:
        if what in self._done:
            work.close()
            return
        self._done.add(what)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self) -> None:
        await asyncio.gather(self.pool.join(), *(source.join() for source in self.runners.values()))

    async def _place(self) -> None:
        places = tuple(PlaceOffer(node=node, slots=slots) for node, slots in self.nodes.items())
        name = self.pool.name
        await self.pool.say(1, [lambda i, n: Placed(source=name, incarnation=i, number=n, attempt=1, places=places)])

    async def _ready(self, node: str, source: Source) -> None:
        await source.say(
            1,
            [
                lambda i, n: RunnerReady(
                    source=node, incarnation=i, number=n, attempt=1, node=node, addr="127.0.0.1", port=4000, clock_s=0.0
                )
            ],
        )

    def ranks(self) -> dict[str, list[int]]:
        """Which ranks each node has, by the layout."""
        found: dict[str, list[int]] = {node: [] for node in self.nodes}
        if self._newest is not None:
            for laid in self._newest.layout:
                found[self._newest.places[laid.place].node].append(laid.rank)
        return found

    async def _train(self, assignment: Assignment) -> None:
        for node, ranks in self.ranks().items():
            await self.runners[node].say(1, [_started(node, rank) for rank in ranks])
        self.at_work.set()

    async def report(self) -> None:
        """Let every rank make one report."""
        self.index += 1
        for node, ranks in self.ranks().items():
            await self.runners[node].say(1, [_reported(node, rank, self.index) for rank in ranks])

    async def finish(self) -> None:
        """Let every rank return."""
        for node, ranks in self.ranks().items():
            await self.runners[node].say(1, [_returned(node, rank, self.index + 1) for rank in ranks])

    async def _stop(self) -> None:
        name = self.pool.name
        await self.pool.say(1, [lambda i, n: Released(source=name, incarnation=i, number=n, attempt=1)])

    async def beat(self) -> None:
        """Let every runner give a sign of life."""
        for node, ranks in self.ranks().items():
            source = self.runners[node]
            beat = RunnerBeat(
                run=self.name,
                source=node,
                incarnation=source.incarnation,
                attempt=1,
                number=source.number,
                clock_s=0.0,
                ranks=tuple(RankBeat(rank=rank, phase="running", index=self.index, memory_bytes=1) for rank in ranks),
            )
            subject = self.subjects.beat(self.name, 1, node)
            await self._connection.publish(subject, msgspec.json.encode(beat))


def _started(node: str, rank: int) -> Callable[[int, int], AnyFact]:
    return lambda i, n: RankStarted(
        source=node, incarnation=i, number=n, attempt=1, rank=rank, life=1, pid=1, next_port=4001
    )


def _reported(node: str, rank: int, index: int) -> Callable[[int, int], AnyFact]:
    metrics: dict[str, Json] | None = {"loss": 0.5} if rank == 0 else None
    return lambda i, n: Reported(
        source=node, incarnation=i, number=n, attempt=1, rank=rank, life=1, index=index, metrics=metrics
    )


def _returned(node: str, rank: int, reports: int) -> Callable[[int, int], AnyFact]:
    return lambda i, n: RankReturned(
        source=node, incarnation=i, number=n, attempt=1, rank=rank, life=1, reports=reports
    )


class FakePool:
    """Plays the part of everybody who trains the runs of a pool."""

    def __init__(self, connection: Connection, nodes: dict[str, int], pool: str) -> None:
        self.runs: dict[str, FakeRun] = {}
        self._connection, self._nodes, self._pool = connection, nodes, pool
        self._follower: Follower | None = None

    def start(self) -> None:
        """Begin to hear assignments."""
        self._follower = assignment_cells(self._connection).follow(self._take)

    async def close(self) -> None:
        """Hear nothing more."""
        if self._follower is not None:
            await self._follower.close()

    def _take(self, cell: Cell) -> None:
        if cell.data is None:
            return
        assignment = msgspec.json.decode(cell.data, type=Assignment)
        run = self.runs.get(cell.key)
        if run is None:
            run = self.runs[cell.key] = FakeRun(self._connection, cell.key, self._nodes, self._pool)
        run.hear(assignment)
