"""A controller over a real broker, and voices that speak to it as supervisor and runner do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from runfold.controller.config import ControllerConfig
from runfold.controller.main import serve
from runfold.events.assignment import Assignment
from runfold.events.entry import Entry, decode_entry
from runfold.events.facts import AnyFact, Fact, FactMessage
from runfold.events.job import Job, encode_job
from runfold.events.nats.cells import Cells, assignment_cells, status_cells
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.nats.publish import Acked, publish_acked
from runfold.events.refusal import JobRefused
from runfold.events.requests import AnyRequest, Join
from runfold.events.status import Status
from support.broker import ANSWER_TIMEOUT_S, BrokerForTest
from support.waiting import LOOK_EVERY_S, until, within

F = TypeVar("F", bound=Fact)
T = TypeVar("T")


class ControllerForTest:
    """A controller in this process, in a task; `kill` ends it without a word, `stop` in order."""

    def __init__(self, broker: BrokerForTest, peer_variables: tuple[str, ...] = ()) -> None:
        self._config = ControllerConfig(
            data_dir=broker.data_dir,
            url=broker.running.url(Role.CONTROLLER),
            host="ctl",
            peer_variables=peer_variables,
        )
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it takes jobs."""
        self._task = asyncio.create_task(serve(self._config, ready=self._ready.set, stop=self._stop))
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({self._task, ready}, timeout=ANSWER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            ready.cancel()
            self._task.result()
        await ready

    async def stop(self) -> None:
        """Stop it in order."""
        self._stop.set()
        if self._task is not None:
            await within(ANSWER_TIMEOUT_S, self._task)

    async def kill(self) -> None:
        """End it where it stands."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def controller(broker: BrokerForTest, peer_variables: tuple[str, ...] = ()) -> AsyncIterator[ControllerForTest]:
    """Run a controller for a while."""
    running = ControllerForTest(broker, peer_variables)
    await running.start()
    try:
        yield running
    finally:
        await running.kill()


class Observer:
    """What anybody can see of runs on a broker, and ask for."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.names = connection.names
        self._statuses = status_cells(connection)
        self._assignments = assignment_cells(connection)

    async def submit(self, job: Job | bytes) -> int:
        """Publish a job and return its sequence."""
        data = job if isinstance(job, bytes) else encode_job(job)
        return await self.publish(self.names.subjects.jobs, data)

    async def publish(self, subject: str, data: bytes, connection: Connection | None = None) -> int:
        """Publish into a stream, as this client or over another connection, and return the sequence."""
        answer = await publish_acked(connection or self.connection, subject, data, timeout_s=ANSWER_TIMEOUT_S)
        if not isinstance(answer, Acked):
            raise AssertionError(f"{subject}: {answer.description}")
        return answer.sequence

    async def entries(self, run: str) -> list[Entry]:
        """Return the entries of a run's log."""
        return [decode_entry(stored.data) async for stored in JetStreamLog(self.connection, run).read()]

    async def status(self, run: str, held: Callable[[Status], bool] = lambda _: True) -> Status:
        """Return a run's status once it is as wanted."""
        return await self._shown(self._statuses, run, Status, held)

    async def assignment(self, run: str, held: Callable[[Assignment], bool] = lambda _: True) -> Assignment:
        """Return a run's assignment once it is as wanted."""
        return await self._shown(self._assignments, run, Assignment, held)

    async def refusal(self, sequence: int) -> JobRefused:
        """Return the record of a refused job once it is there."""
        from runfold.events.nats.api import Api

        api, found = Api(self.connection), list[bytes]()

        async def there() -> bool:
            message = await api.last_message(self.names.refusals, self.names.subjects.refused(sequence))
            found.extend([message.data] if message is not None else [])
            return message is not None

        await until(there)
        return msgspec.json.decode(found[-1], type=JobRefused)

    async def request(self, run: str, verb: str, request: AnyRequest) -> None:
        """Ask something of a run."""
        await self.publish(self.names.subjects.request(run, verb), msgspec.json.encode(request))

    async def queue_is_empty(self) -> None:
        """Wait until every job is out of the queue."""
        from runfold.events.nats.api import Api

        api = Api(self.connection)

        async def empty() -> bool:
            info = await api.stream_info(self.names.jobs)
            return info is not None and info.state.messages == 0

        await until(empty)

    async def _shown(self, cells: Cells, run: str, kind: type[T], held: Callable[[T], bool]) -> T:
        seen: list[T] = []

        async def as_wanted() -> bool:
            cell = await cells.get(run)
            if cell is None or cell.data is None:
                return False
            seen[:] = [msgspec.json.decode(cell.data, type=kind)]
            return held(seen[0])

        try:
            await until(as_wanted)
        except TimeoutError:
            raise AssertionError(f"never as wanted; the last seen: {seen}") from None
        return seen[0]


class Voice:
    """A source of facts: joins, then numbers what it says."""

    def __init__(self, connection: Connection, observer: Observer, run: str, source: str) -> None:
        self.source = source
        self.incarnation = 0
        self.number = 0
        self._connection, self._observer, self._run = connection, observer, run

    async def join(self, boot: str) -> None:
        """Ask for an incarnation and wait for it."""
        subject = self._connection.names.subjects.request(self._run, "join")
        await self._publish(subject, msgspec.json.encode(Join(id=boot, source=self.source, boot=boot)))
        shown = await self._observer.assignment(
            self._run, lambda a: any(g.source == self.source and g.boot == boot for g in a.joined)
        )
        self.incarnation = next(given.incarnation for given in shown.joined if given.source == self.source)
        self.number = 0

    def next(self, kind: type[F], attempt: int = 1, **fields: object) -> F:
        """Make the next fact."""
        self.number += 1
        base = {"source": self.source, "incarnation": self.incarnation, "number": self.number, "attempt": attempt}
        return msgspec.convert({"kind": kind.__struct_config__.tag, **base, **fields}, kind)

    async def say(self, *facts: AnyFact, attempt: int = 1) -> int:
        """Publish facts in one message."""
        return await self.say_raw(msgspec.json.encode(FactMessage(run=self._run, facts=facts)), attempt)

    async def say_raw(self, data: bytes, attempt: int = 1) -> int:
        """Publish a message as it is."""
        return await self._publish(self._connection.names.subjects.fact(self._run, attempt, self.source), data)

    async def _publish(self, subject: str, data: bytes) -> int:
        """Publish the same bytes until they are acknowledged, as a source does."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while True:
                try:
                    return await self._observer.publish(subject, data, self._connection)
                except Unanswered:
                    await asyncio.sleep(LOOK_EVERY_S)
