"""A connection to a broker that is there and answers only what a test has it answer: for waits, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from runfold.events.nats.client import RawClient, RawMessage
from runfold.events.nats.connection import Connection
from runfold.events.nats.names import Names, Role
from support.virtual import run_virtual

T = TypeVar("T")
NO_MESSAGE = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


@dataclass(frozen=True)
class Answer:
    """A message that answers another one."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] | None = None


class Subscription:
    """A subscription on which nothing comes by itself."""

    async def unsubscribe(self) -> None:
        """End it."""


@dataclass
class SilentServer:
    """Takes what is said, and notes on which subject and when; `answers` are its answers by a part of the subject."""

    answers: dict[str, object] = field(default_factory=dict)
    said: list[tuple[str, float]] = field(default_factory=list)
    is_connected: bool = True
    is_closed: bool = False
    pending_data_size: int = 0
    callbacks: dict[str, Callable[[RawMessage], Awaitable[None]]] = field(default_factory=dict)
    inboxes_count: int = 0

    async def connect(self, url: str, **options: object) -> None:
        """Never be greeted."""
        await asyncio.Event().wait()

    def new_inbox(self) -> str:
        """Return a subject of its own."""
        self.inboxes_count += 1
        return f"_INBOX.{self.inboxes_count}"

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Take a message."""
        self.said.append((subject, asyncio.get_running_loop().time()))
        for part, answer in self.answers.items():
            if part in subject:
                await self.callbacks[f"{reply.rpartition('.')[0]}.*"](Answer(reply, msgspec.json.encode(answer)))
                return

    async def subscribe(
        self,
        subject: str,
        *,
        cb: Callable[[RawMessage], Awaitable[None]],
        pending_msgs_limit: int,
        pending_bytes_limit: int,
    ) -> Subscription:
        """Note who hears."""
        self.callbacks[subject] = cb
        return Subscription()

    async def flush(self, timeout: int = 10) -> None:
        """Answer no PING."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Never come to an end of it, unless there is nothing to end."""
        if self.is_connected:
            await asyncio.Event().wait()


class SilentConnection(Connection):
    """A connection that is up, to a `SilentServer`. Made in a running loop."""

    def __init__(self, answers: Mapping[str, object] | None = None) -> None:
        super().__init__(Role.WORKER, "silent", "nats://silent", Names())
        self.server_side = SilentServer(dict(answers or {}))
        self._up.set()

    @property
    def raw(self) -> RawClient:
        """The server's side itself."""
        return self.server_side


def passed(
    story: Callable[[SilentConnection], Coroutine[None, None, T]], answers: Mapping[str, object] | None = None
) -> tuple[T | Exception, float]:
    """Tell a story in virtual time, the server saying `answers` alone: what came of it, and after how long."""

    async def told() -> tuple[T | Exception, float]:
        connection = SilentConnection(answers)
        try:
            outcome: T | Exception = await story(connection)
        except Exception as error:
            outcome = error
        return outcome, asyncio.get_running_loop().time()

    return run_virtual(told())
