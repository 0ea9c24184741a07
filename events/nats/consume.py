"""Following a stream: an ordered consumer of our own, made anew whenever what it heard may have a hole.

nats-py's goes on after a reconnect without a look at what the stream has become; this one asks first, since a
stream can come back shorter, or as another one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from runfold.events.nats.api import NS_PER_S, Api, StreamInfo
from runfold.events.nats.errors import ApiRefused, BrokerClosed, StreamsMissing, Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runfold.events.nats.client import RawMessage, RawSubscription
    from runfold.events.nats.connection import Connection

IDLE_HEARTBEAT_S: Final = 0.5
SILENCE_MAX_S: Final = 3 * IDLE_HEARTBEAT_S
"""No message and no heartbeat for so long: the consumer is made anew."""

HEARTBEAT_LATE_S: Final = 2 * IDLE_HEARTBEAT_S
RETRY_EVERY_S: Final = 0.25
CONSUMER_INACTIVE_S: Final = 30
_ACK_TOKENS: Final = 9
_ACK_TOKENS_LONG: Final = 12

_STATUS = "Status"
_LAST_CONSUMER = "Nats-Last-Consumer"
_STALLED = "Nats-Consumer-Stalled"


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message of a stream. `pending` is how many the consumer had still to send after it."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    pending: int
    stored_at_s: float


class Follower:
    """Calls `on_message` with each message of some subjects of a stream, in order, none twice, none left out.

    `after` is the last sequence that is not wanted. Each time it (re)starts it looks at the stream and asks
    `resume` where to go on: it is given the stream and the last sequence delivered (at first `after`), and
    returns the sequence after which to deliver. Without `resume` it begins again when the stream has become
    shorter, or is another one. Callbacks are plain functions, run in the event loop, and must not raise: one
    that does is called again with the same message.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        filters: Sequence[str],
        on_message: Callable[[Delivered], None],
        *,
        after: int = 0,
        last_per_subject: bool = False,
        resume: Callable[[StreamInfo, int], int] | None = None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._filters = tuple(filters)
        self._on_message = on_message
        self._last_per_subject = last_per_subject
        self._resume = resume or self._go_on
        self._identity: str | None = None
        self._position = after
        self._wake = asyncio.Event()
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._caught_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attached = _Attachment("", 0.0, broken=True)

    @property
    def caught_up(self) -> bool:
        """Whether everything stored had been delivered when the server was last heard, a moment ago."""
        silent_s = asyncio.get_running_loop().time() - self._attached.heard_at
        return self._caught_up.is_set() and silent_s <= HEARTBEAT_LATE_S

    @property
    def position(self) -> int:
        """The sequence of the last message delivered."""
        return self._position

    def start(self) -> None:
        """Begin; `close` ends it."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"follow {self._stream}")

    def pause(self) -> None:
        """Deliver nothing more for now; `go_on` goes on behind the last message. May be called by `on_message`."""
        self._may_go_on.clear()
        self._disturbed()

    def go_on(self) -> None:
        """Deliver again after a `pause`."""
        self._may_go_on.set()

    async def wait_caught_up(self, timeout_s: float) -> bool:
        """Wait until everything stored was delivered; False when it was not within the time.

        Raises:
            BrokerError: what ended following (the connection was closed, the stream is gone).
        """
        waiting: asyncio.Future[Literal[True]] = asyncio.ensure_future(self._caught_up.wait())
        try:
            first: set[asyncio.Future[Literal[True]] | asyncio.Future[None]] = {waiting, self._failed}
            await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            # Not `caught_up`: more may have come since, or the server may have fallen silent.
            return waiting.done()
        finally:
            waiting.cancel()

    async def wait_ended(self) -> None:
        """Wait until following ends by itself, and raise why; return when it was closed."""
        await asyncio.shield(self._failed)

    async def close(self) -> None:
        """End following; no callback runs after this returns."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if not self._failed.done():
            self._failed.set_result(None)

    async def _run(self) -> None:
        forget = self._connection.on_change(self._disturbed)
        try:
            while True:
                await self._connection.wait_up()
                await self._may_go_on.wait()
                before = self._position
                try:
                    await self._follow_once()
                except (Unanswered, ApiRefused):
                    self._caught_up.clear()
                if self._position == before:
                    await asyncio.sleep(RETRY_EVERY_S)  # no progress: the server, or the callback, needs a rest
        except (BrokerClosed, StreamsMissing) as error:
            self._caught_up.clear()
            if not self._failed.done():
                self._failed.set_exception(error)
                self._failed.exception()  # whoever waits reads it; nobody has to
        finally:
            forget()

    def _go_on(self, info: StreamInfo, position: int) -> int:
        same = self._identity in {None, info.created} and info.state.last_seq >= position
        self._identity = info.created
        return position if same else 0

    def _disturbed(self) -> None:
        self._caught_up.clear()
        self._attached.broken = True
        self._wake.set()

    async def _follow_once(self) -> None:
        """Attach a consumer and serve it until it has to be made anew."""
        api = Api(self._connection)
        self._caught_up.clear()
        info = await api.stream_info(self._stream)
        if info is None:
            raise StreamsMissing([self._stream], "it was followed a moment ago, or is not created yet")
        self._position = self._resume(info, self._position)
        attached = self._attached = _Attachment(self._connection.raw.new_inbox(), asyncio.get_running_loop().time())
        self._wake.clear()
        subscription = await self._connection.subscribe(attached.inbox, partial(self._receive, attached))
        try:
            consumer = attached.inbox.rpartition(".")[2]
            made = await api.create_consumer(self._stream, consumer, self._consumer(attached.inbox))
            sent_all = made.num_pending == 0 and made.delivered.consumer_seq < attached.expected
            if sent_all and not attached.broken:
                self._caught_up.set()
            await self._watch(attached)
        finally:
            attached.broken = True
            await self._detach(subscription, attached)

    async def _watch(self, attached: _Attachment) -> None:
        loop = asyncio.get_running_loop()
        while not attached.broken:
            try:
                async with asyncio.timeout(IDLE_HEARTBEAT_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if loop.time() - attached.heard_at > SILENCE_MAX_S:
                attached.broken = True
        self._caught_up.clear()

    async def _detach(self, subscription: RawSubscription, attached: _Attachment) -> None:
        await self._connection.unsubscribe(subscription)
        if self._connection.is_up:
            # The answer is not waited for: a consumer without a listener is removed by the server soon.
            consumer = attached.inbox.rpartition(".")[2]
            try:
                await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", b"")
            except (Unanswered, BrokerClosed):
                pass

    def _consumer(self, inbox: str) -> dict[str, object]:
        body: dict[str, object] = {
            "deliver_subject": inbox,
            "filter_subjects": self._filters,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "flow_control": True,
            "idle_heartbeat": int(IDLE_HEARTBEAT_S * NS_PER_S),
            "inactive_threshold": CONSUMER_INACTIVE_S * NS_PER_S,
        }
        if self._last_per_subject and self._position == 0:
            body["deliver_policy"] = "last_per_subject"
        else:
            body["deliver_policy"] = "by_start_sequence"
            body["opt_start_seq"] = self._position + 1
        return body

    async def _receive(self, attached: _Attachment, message: RawMessage) -> None:
        if attached.broken:
            return
        attached.heard_at = asyncio.get_running_loop().time()
        headers = message.headers or {}
        if not message.data and headers.get(_STATUS) == "100":
            await self._control(attached, message, headers)
            return
        place = parse_place(message.reply)
        if place is None or place.consumer_sequence != attached.expected:
            self._disturbed()
            return
        self._on_message(
            Delivered(message.subject, message.data, headers, place.sequence, place.pending, place.stored_at_s)
        )
        # Only now: a callback that raised sees the message again, and nothing is skipped.
        attached.expected += 1
        self._position = place.sequence
        if place.pending == 0:
            self._caught_up.set()
        else:
            self._caught_up.clear()

    async def _control(self, attached: _Attachment, message: RawMessage, headers: Mapping[str, str]) -> None:
        """Answer flow control, and compare what a heartbeat says was sent with what arrived."""
        answer = message.reply or headers.get(_STALLED)
        if answer:
            try:
                await self._connection.publish(answer, b"")
            except (Unanswered, BrokerClosed):
                attached.broken = True
        last = headers.get(_LAST_CONSUMER)
        if last is not None and last.isdecimal() and int(last) >= attached.expected:
            self._disturbed()


@dataclass(slots=True)
class _Attachment:
    """One life of the consumer: its inbox, when it was last heard, the number its next message must have."""

    inbox: str
    heard_at: float
    expected: int = 1
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a delivered message stands: in its stream, among its consumer's, how many follow, how often it came."""

    sequence: int
    consumer_sequence: int
    stored_at_s: float
    pending: int
    deliveries: int = 1


def parse_place(reply: str) -> Place | None:
    """Read the place of a message from the subject on which it would be acknowledged; None for any other."""
    tokens = reply.split(".")
    if tokens[:2] != ["$JS", "ACK"]:
        return None
    if len(tokens) >= _ACK_TOKENS_LONG - 1:
        tokens = tokens[:2] + tokens[4:]  # domain and account, on servers that say them
    if len(tokens) < _ACK_TOKENS:
        return None
    numbers = tokens[4:9]
    if not all(number.isdecimal() for number in numbers):
        return None
    deliveries, sequence, consumer_sequence, stored_ns, pending = (int(number) for number in numbers)
    return Place(sequence, consumer_sequence, stored_ns / NS_PER_S, pending, deliveries)
