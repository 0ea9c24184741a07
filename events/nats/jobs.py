"""Taking jobs from their queue, one at a time, each acknowledged once its run exists or its refusal is kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events import limits
from runfold.events.nats.api import NS_PER_S
from runfold.events.nats.consume import parse_place
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.names import JOBS_CONSUMER

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.events.nats.client import RawMessage, RawSubscription
    from runfold.events.nats.connection import Connection

PULL_SLACK_S: Final = 2.0
"""How much longer than the pull's own expiry its answer is awaited."""

ACK_TIMEOUT_S: Final = 5.0
ARRIVED_MAX_COUNT: Final = 16
"""So many answers wait to be read; a pull has one, or two when it is given up as a job comes."""

_NOTHING_NOW: Final = frozenset({"404", "408"})


@dataclass(frozen=True, slots=True)
class JobMessage:
    """A published job: its bytes, its sequence in JOBS, and how often it was handed out (1 at first)."""

    data: bytes
    sequence: int
    deliveries: int
    ack_subject: str


class Jobs:
    """The queue of jobs as the one durable consumer of all controllers. Made by one reader; `close` ends it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pull = f"$JS.API.CONSUMER.MSG.NEXT.{connection.names.jobs}.{JOBS_CONSUMER}"
        self._request = msgspec.json.encode({"batch": 1, "expires": int(limits.JOBS_PULL_EXPIRES_S * NS_PER_S)})
        # Jobs come under their own subject, not as answers to a request: they need an inbox of their own.
        self._inbox = connection.raw.new_inbox()
        self._subscription: RawSubscription | None = None
        self._arrived: asyncio.Queue[RawMessage | None] = asyncio.Queue(ARRIVED_MAX_COUNT)
        self._forget: Callable[[], None] | None = None

    async def next(self) -> JobMessage | None:
        """Wait a second for a job; None when none came. One that is not acknowledged is handed out again.

        Raises:
            Unanswered: the broker is away, or the consumer is between two leaders; ask again after a moment.
        """
        if self._subscription is None:
            self._subscription = await self._connection.subscribe(self._inbox, self._arrived.put)
            self._forget = self._connection.on_change(self._disturbed)
        if self._arrived.empty():  # otherwise one came after its pull was given up
            await self._connection.publish(self._pull, self._request, reply=self._inbox)
        patience_s = limits.JOBS_PULL_EXPIRES_S + PULL_SLACK_S
        try:
            async with asyncio.timeout(patience_s):
                message = await self._arrived.get()
        except TimeoutError:
            raise Unanswered(self._pull, f"no answer within {patience_s:g} s") from None
        if message is None:
            return None  # the pull was lost with the connection
        headers = message.headers or {}
        status = headers.get("Status")
        if status is not None:
            if status in _NOTHING_NOW:
                return None
            raise Unanswered(self._pull, f"{status} {headers.get('Description', '')}".strip())
        place = parse_place(message.reply)
        if place is None:
            raise Unanswered(self._pull, "the answer was no message of a stream")
        return JobMessage(message.data, place.sequence, place.deliveries, message.reply)

    async def close(self) -> None:
        """Take no more; a job that was handed out and not acknowledged is handed to another."""
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)
            self._subscription = None
        if self._forget is not None:
            self._forget()
            self._forget = None

    def _disturbed(self) -> None:
        """Ask anew: what was asked over the connection that was lost is not answered."""
        if self._connection.is_up and self._arrived.empty():
            self._arrived.put_nowait(None)

    async def ack(self, job: JobMessage) -> None:
        """Say that the job's run exists; it leaves the queue. Raises Unanswered when that is not sure."""
        await self._connection.request(job.ack_subject, b"+ACK", timeout_s=ACK_TIMEOUT_S)

    async def term(self, job: JobMessage) -> None:
        """Say that the job is refused for good; it leaves the queue. Raises Unanswered when that is not sure."""
        await self._connection.request(job.ack_subject, b"+TERM", timeout_s=ACK_TIMEOUT_S)
