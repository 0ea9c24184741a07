"""A worker's connection over the net: as much of the real one as the real sources use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import msgspec

from runfold.controller.ports import Unavailable
from runfold.events.assignment import Assignment
from runfold.events.facts import AnyFact
from runfold.events.nats.client import RawMessage, RawSubscription
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.names import Names
from runfold.workers.facts import Facts
from runfold.workers.follow import Newest
from support.sim.broker import Broker, Shown
from support.sim.net import BROKER, Follower, Net, NoAnswer
from support.sim.process import Process
from support.sim.truth import Truth

LOOK_EVERY_S: Final = 0.2
NO_ROOM: Final = {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}


@dataclass(frozen=True)
class Message:
    """A message as it arrived."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Subscription:
    """One open subscription."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    async def unsubscribe(self) -> None:
        """Hear no more."""
        self._end()


class SimConnection:
    """See `runfold.events.nats.connection.Connection`."""

    def __init__(self, who: Process, net: Net, broker: Broker) -> None:
        self.names = Names()
        self._who, self._net, self._broker = who, net, broker

    @property
    def is_up(self) -> bool:
        """Whether the broker can be reached."""
        return self._net.reaches(self._who.name)

    def real(self) -> Connection:
        """Return it as what it stands for."""
        return cast("Connection", self)

    async def wait_up(self, timeout_s: float | None = None) -> bool:
        """Wait until the broker can be reached."""
        while not self.is_up:
            await asyncio.sleep(LOOK_EVERY_S)
        return True

    @property
    def generation(self) -> int:
        """How often it was lost."""
        return self._net.breaks.get(self._who.name, 0) + self._broker.deaths_count

    dropped_count = 0
    """Nothing is dropped here that the connection knows of."""

    async def ready(self, timeout_s: float) -> None:
        """Ask the broker whether it is there."""
        try:
            await self._net.ask(self._who, lambda: None, timeout_s=timeout_s)
        except NoAnswer as error:
            raise Unanswered("PING", str(error)) from error

    async def publish(self, subject: str, data: bytes) -> None:
        """Say something that is not kept."""
        await self._who.awake()
        self._net.tell(self._who.name, BROKER, lambda: self._broker.say(subject, data))

    async def request(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None, timeout_s: float
    ) -> Message:
        """Publish into the inbox and return its acknowledgement."""
        _, _, run, rest = subject.split(".", 3)
        try:
            sequence = await self._net.ask(
                self._who,
                lambda: self._broker.publish(run, rest, data),
                timeout_s=timeout_s,
                linger=self._broker.disk_s,
            )
        except NoAnswer as error:
            raise Unanswered(subject, str(error)) from error
        except Unavailable:
            return Message("", msgspec.json.encode({"error": NO_ROOM}))
        return Message("", msgspec.json.encode({"stream": "RUNFOLD_INBOX", "seq": sequence}))

    async def subscribe(self, subject: str, callback: Callable[[RawMessage], Awaitable[None]]) -> RawSubscription:
        """Hear what is said and not kept."""
        loop = asyncio.get_running_loop()

        def deliver(subject: str, data: bytes) -> None:
            if self._who.alive:
                self._who.run(lambda: _keep(loop.create_task(_call(callback, Message(subject, data)))))

        def hear(subject: str, data: bytes) -> None:
            if self._who.alive:
                self._net.tell(BROKER, self._who.name, lambda: deliver(subject, data))

        return Subscription(self._broker.listen(subject, hear))

    async def unsubscribe(self, subscription: RawSubscription) -> None:
        """Hear no more."""
        await subscription.unsubscribe()


async def _call(callback: Callable[[RawMessage], Awaitable[None]], message: RawMessage) -> None:
    await callback(message)


def _keep(task: asyncio.Task[None]) -> None:
    """A task is kept by the process that owns it."""


class SimFacts(Facts):
    """The real source, listened to by the truth."""

    def __init__(
        self,
        connection: SimConnection,
        truth: Truth,
        *,
        run: str,
        source: str,
        boot: str,
        flush_s: float,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(connection.real(), run=run, source=source, boot=boot, flush_s=flush_s, on_change=on_change)
        self._truth = truth
        truth.sources.append(self)

    def say(self, fact: AnyFact) -> None:
        """Take a fact, and let it be known."""
        self._truth.fact(self.run, fact)
        super().say(fact)


def watch_assignments(
    who: Process, net: Net, broker: Broker, hear: Callable[[Assignment], None], run: str | None = None
) -> Follower[Shown]:
    """Call `hear` with each assignment newer than the one before it, of one run or of all."""
    newest = Newest()

    def deliver(shown: Shown) -> None:
        if (news := newest.take(shown.run, shown.data)) is not None:
            who.run(lambda: hear(news))

    follower = Follower(net, who, broker.look_shown(run), deliver)
    broker.watch(run, follower)
    return follower
