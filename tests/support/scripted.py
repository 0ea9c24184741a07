"""A controller that does as the test says: publishes assignments, gives out incarnations, keeps the facts it hears."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from runfold.events.assignment import Assignment, PlaceWanted, Rendezvous, SourceGiven, StopOrder, Want, Work
from runfold.events.beats import Folded
from runfold.events.config import Timeouts
from runfold.events.facts import AnyFact, Fact, FactMessage, Placed, RankExited, RunnerReady
from runfold.events.nats.cells import assignment_cells
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.inbox import Inbox, InboxMessage
from runfold.events.nats.names import Role
from runfold.events.requests import Join
from runfold.events.subjects import FactSubject, RequestSubject
from runfold.events.transitions import RankLaid
from support.ranks import write_job
from support.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.nats.connection import Connection
    from support.broker import BrokerForTest

F = TypeVar("F", bound=Fact)


class Scripted:
    """One run's controller. `facts` holds each fact once, in the order of its source's numbers."""

    def __init__(self, connection: Connection, run: str, work: Work, *, num_workers: int = 2) -> None:
        self.run = run
        self.facts: list[AnyFact] = []
        self.messages: list[bytes] = []
        self.folding = True
        self.folded: dict[str, int] = {}
        self.work = work
        self._connection = connection
        self._cells = assignment_cells(connection)
        self._joined: dict[str, SourceGiven] = {}
        self._base = Assignment(
            run=run,
            epoch=1,
            n=0,
            hash="0" * 64,
            attempt=1,
            want="place",
            num_workers=num_workers,
            accepted_at="2026-01-01T00:00:00Z",
            resources={"CPU": 1.0},
        )
        self._news = asyncio.Event()
        self._n = 0
        self._publishing = asyncio.create_task(self._publish_news(), name="scripted")
        self._inbox = Inbox(connection, run, cursor=None, on_message=self._take, on_reset=lambda _: None)
        self._inbox.start()

    async def close(self) -> None:
        """Hear and say nothing more."""
        await self._inbox.close()
        self._publishing.cancel()
        await asyncio.gather(self._publishing, return_exceptions=True)

    # --- what it says

    def want(self, want: Want, **changes: object) -> None:
        """Change the assignment; it is published at once."""
        self._base = msgspec.structs.replace(self._base, want=want, **changes)
        self._news.set()

    async def place(self, patience_s: float = PATIENCE_S) -> None:
        """Ask for places, and wait until every runner is ready."""
        self.want("place")
        placed = await self.heard(Placed, patience_s=patience_s)
        places = tuple(PlaceWanted(node=p.node, slots=p.slots, source=p.node) for p in placed.places)
        await self.heard(RunnerReady, count=len(places), patience_s=patience_s)
        self._base = msgspec.structs.replace(self._base, places=places)

    @property
    def places(self) -> tuple[PlaceWanted, ...]:
        """The group's places."""
        return self._base.places

    def train(self, attempt: int = 1, rendezvous: Rendezvous | None = None) -> None:
        """Lay out the ranks in order of the places and have them train."""
        layout: list[RankLaid] = []
        for place, where in enumerate(self._base.places):
            for local in range(where.slots):
                layout.append(RankLaid(rank=len(layout), life=1, place=place, local_rank=local, node_rank=place))
        first = next(fact for fact in self.of(RunnerReady) if fact.source == self.places[0].source)
        meeting = rendezvous or Rendezvous(addr=first.addr, port=first.port)
        self.want("train", attempt=attempt, layout=tuple(layout), rendezvous=meeting)

    def stop(self, reason: str = "the test says so", grace_s: float = 60.0) -> None:
        """Have the group end."""
        self.want("stop", stop=StopOrder(reason=reason, grace_s=grace_s, deadline_t=60.0))

    def skip_to(self, n: int) -> None:
        """Have the next assignment be of this entry."""
        self._n = n - 1

    def give(self, source: str, boot: str) -> None:
        """Give a source's name to another process."""
        number = self._joined[source].incarnation + 1
        self._joined[source] = SourceGiven(source=source, boot=boot, incarnation=number)
        self.folded[source] = 0
        self._news.set()

    # --- what it hears

    def joined(self, source: str) -> int:
        """Return the incarnation that a source has; 0 before it asked for one."""
        given = self._joined.get(source)
        return given.incarnation if given is not None else 0

    def of(self, kind: type[F], **fields: object) -> list[F]:
        """Return the facts of a kind that have these fields."""
        found = [fact for fact in self.facts if isinstance(fact, kind)]
        return [fact for fact in found if all(getattr(fact, name) == value for name, value in fields.items())]

    async def heard(self, kind: type[F], *, count: int = 1, patience_s: float = PATIENCE_S, **fields: object) -> F:
        """Wait for so many facts of a kind; return the last of them."""
        try:
            await until(lambda: len(self.of(kind, **fields)) >= count, patience_s)
        except TimeoutError:
            raise AssertionError(f"no {count} {kind.__name__} {fields} among {self.facts}") from None
        return self.of(kind, **fields)[count - 1]

    async def ended(self, count: int, *, patience_s: float = PATIENCE_S, **fields: object) -> list[RankExited]:
        """Wait for the ends of so many ranks."""
        await self.heard(RankExited, count=count, patience_s=patience_s, **fields)
        return self.of(RankExited, **fields)

    def _take(self, message: InboxMessage) -> None:
        parts = self._connection.names.subjects.parse_inbox(message.subject)
        if isinstance(parts, RequestSubject):
            join = msgspec.json.decode(message.data, type=Join)
            before = self._joined.get(join.source)
            if before is None or before.boot != join.boot:
                number = 1 if before is None else before.incarnation + 1
                self._joined[join.source] = SourceGiven(source=join.source, boot=join.boot, incarnation=number)
                self.folded[join.source] = 0
                self._news.set()
        elif isinstance(parts, FactSubject):
            self.messages.append(message.data)
            self._fold(msgspec.json.decode(message.data, type=FactMessage))

    def _fold(self, message: FactMessage) -> None:
        if not self.folding:
            return
        for fact in message.facts:
            given = self._joined.get(fact.source)
            fresh = given is not None and fact.incarnation == given.incarnation
            if fresh and fact.number == self.folded[fact.source] + 1:
                self.folded[fact.source] = fact.number
                self.facts.append(fact)

    async def _publish_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._n += 1
            told = msgspec.structs.replace(
                self._base, n=self._n, job=self.work, joined=tuple(self._joined.values()), folded=dict(self.folded)
            )
            try:
                await self._cells.put(self.run, msgspec.json.encode(told), expected=None)
            except Unanswered:
                self._news.set()  # the broker is away, or was busy

    async def say_folded(self) -> None:
        """Say what is folded, as a controller does now and then."""
        said = Folded(run=self.run, epoch=1, n=self._n, folded=dict(self.folded))
        await self._connection.publish(self._connection.names.subjects.folded(self.run), msgspec.json.encode(said))


class Asking:
    """Where groups are asked for: a `broker`, the user's `folder`, and the `runs` so far."""

    def __init__(self, broker: BrokerForTest, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.runs: list[Scripted] = []

    async def run(self, name: str, body: str, *, num_workers: int = 2, **changes: object) -> Scripted:
        """Write the user's file and ask for its group; the runners are ready when this returns."""
        run = await self.asked(name, body, num_workers=num_workers, **changes)
        await run.place()
        return run

    async def asked(self, name: str, body: str, *, num_workers: int = 2, **changes: object) -> Scripted:
        """Write the user's file and make the run known to the test; nothing is published yet."""
        write_job(self.folder, body)
        connection = await self.broker.connect(Role.CONTROLLER)
        asked = msgspec.structs.replace(work("job.py:train", str(self.folder)), **changes)
        run = Scripted(connection, name, asked, num_workers=num_workers)
        self.runs.append(run)
        return run


def work(entrypoint: str, folder: str) -> Work:
    """Return what the ranks run."""
    return Work(entrypoint=entrypoint, working_dir=folder, name="test", timeouts=Timeouts())
