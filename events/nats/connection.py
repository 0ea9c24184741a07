"""A connection to the broker as one of its users: quick to notice a silent server, never given up by itself."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast
from urllib.parse import unquote, urlsplit

from runfold.events.nats.errors import BrokerClosed, BrokerError, BrokerUnreachable, Unanswered
from runfold.events.nats.files import without_credentials
from runfold.events.nats.library import (
    Client,
    ConnectionClosedError,
    NatsError,
    OutboundBufferLimitError,
    SlowConsumerError,
)
from runfold.events.nats.names import Names, Role

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from runfold.events.nats.client import RawClient, RawMessage, RawSubscription

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 5.0
TCP_CONNECT_TIMEOUT_S: Final = 2
CLOSE_TIMEOUT_S: Final = 5.0
QUEUE_LOOK_EVERY_S: Final = 0.001
RECONNECT_WAIT_S: Final = 0.2
PING_EVERY_S: Final = 2
PINGS_OUTSTANDING_MAX: Final = 2
PENDING_MAX_BYTES: Final = 8 * 1024 * 1024
PENDING_NONE: Final = -1
"""For connections that append: while the server is away a publish fails at once, and is not kept to be sent later."""

SUBSCRIPTION_MESSAGES_MAX: Final = 65_536
SUBSCRIPTION_MAX_BYTES: Final = 64 * 1024 * 1024

_NO_RESPONDERS: Final = "503"
_log = logging.getLogger(__name__)


class Patience(Protocol):
    """How a server that is away is waited for."""

    async def again(self, connection: Connection, since_s: float) -> bool:
        """Return whether to ask again, once it can be heard; raise `BrokerAway` when it was away for too long."""
        ...


class Connection:
    """One connection; made by `connect`, closed by `close`.

    `generation` grows with each reconnect: who holds server-side state (a consumer) compares it. `dropped_count`
    is the number of messages that our side could not take in time. `last_error` is what the broker said last,
    permission violations among it (they end no call), or what a callback of ours raised. With `patience`, what is
    asked while the server is away is asked again when it is back.
    """

    def __init__(self, role: Role, name: str, server: str, names: Names) -> None:
        self.role = role
        self.name = name
        self.server = server
        self.names = names
        self.generation = 0
        self.dropped_count = 0
        self.last_error: Exception | None = None
        self.patience: Patience | None = None
        self.refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._up = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._raw_client = Client()
        self._subscriptions: set[RawSubscription] = set()
        self._answers = f"{role.inbox}.{secrets.token_hex(11)}"
        self._answers_heard = False
        self._waiting: dict[str, asyncio.Future[RawMessage | None]] = {}
        self._requests_count = 0

    @property
    def raw(self) -> RawClient:
        """The connection of nats-py underneath."""
        return cast("RawClient", self._raw_client)

    @property
    def is_up(self) -> bool:
        """Whether the server can be heard now."""
        return self._up.is_set() and self.raw.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether this connection was closed for good."""
        return self.raw.is_closed

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever the connection is lost, made again or closed; return the call that ends this."""
        self._listeners.append(listener)

        def forget() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return forget

    async def wait_up(self, timeout_s: float | None = None) -> bool:
        """Wait until the server can be heard; False when it cannot within the time."""
        if self.is_closed:
            raise BrokerClosed(f"the connection {self.name!r} is closed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            return False
        if self.is_closed:
            raise BrokerClosed(f"the connection {self.name!r} is closed")
        return True

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, *, reply: str = ""
    ) -> None:
        """Say something without waiting for an answer (core NATS): beats, flow control.

        Raises:
            Unanswered: the server is away and this connection keeps nothing (or no more) for later.
            BrokerClosed: the connection was closed.
        """
        try:
            await self.raw.publish(subject, data, reply, dict(headers) if headers else None)
        except OutboundBufferLimitError:
            raise Unanswered(subject, "the connection is down") from None
        except ConnectionClosedError:
            raise BrokerClosed(f"the connection {self.name!r} is closed") from None

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> RawMessage:
        """Say something and wait for its one answer; a lost connection ends the wait at once, if there is no patience.

        Raises:
            Unanswered: no answer in time, nobody there to answer, or the server is away.
            BrokerClosed: the connection was closed.
        """
        return await self.asked(lambda: self._request(subject, data, timeout_s, headers))

    async def asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and ask the same again when the server was away meanwhile, for as long as there is patience.

        Raises what `ask` raises, and `BrokerAway` when the server was away for too long.
        """
        since_s: float | None = None
        while True:
            generation = self.generation
            try:
                return await ask()
            except Unanswered:
                if self.is_up and self.generation == generation:
                    raise  # it is there, and does not answer
                since_s = asyncio.get_running_loop().time() if since_s is None else since_s
                if not await self.is_awaited(since_s):
                    raise

    async def is_awaited(self, since_s: float) -> bool:
        """Wait for a server that is away since then; return whether to ask it again."""
        return self.patience is not None and await self.patience.again(self, since_s)

    async def _request(
        self, subject: str, data: bytes, timeout_s: float, headers: Mapping[str, str] | None
    ) -> RawMessage:
        if not self._answers_heard:
            self._answers_heard = True  # before the await: a second caller must not listen again
            await self.subscribe(f"{self._answers}.*", self._answered)
        self._requests_count += 1
        reply = f"{self._answers}.{self._requests_count}"
        answer: asyncio.Future[RawMessage | None] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = answer
        try:
            await self.publish(subject, data, headers, reply=reply)
            # Not `wait_for`: on Python 3.11 it forgets a cancellation that meets the answer.
            async with asyncio.timeout(timeout_s):
                message = await answer
        except TimeoutError:
            raise Unanswered(subject, f"no answer within {timeout_s:g} s") from None
        finally:
            del self._waiting[reply]
        if message is None:
            if self.is_closed:
                raise BrokerClosed(f"the connection {self.name!r} is closed")
            raise Unanswered(subject, "the connection was lost")
        if not message.data and message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            raise Unanswered(subject, "nobody there answers it")
        return message

    async def _answered(self, message: RawMessage) -> None:
        answer = self._waiting.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def subscribe(self, subject: str, callback: Callable[[RawMessage], Awaitable[None]]) -> RawSubscription:
        """Call back with each message on a subject; what cannot be taken in time is dropped and counted."""
        try:
            subscription = await self.raw.subscribe(
                subject,
                cb=callback,
                pending_msgs_limit=SUBSCRIPTION_MESSAGES_MAX,
                pending_bytes_limit=SUBSCRIPTION_MAX_BYTES,
            )
        except ConnectionClosedError:
            raise BrokerClosed(f"the connection {self.name!r} is closed") from None
        self._subscriptions.add(subscription)
        return subscription

    async def unsubscribe(self, subscription: RawSubscription) -> None:
        """End a subscription; nothing happens when the connection is gone already."""
        self._subscriptions.discard(subscription)
        try:
            await subscription.unsubscribe()
        except (NatsError, OSError):
            pass

    async def ready(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Return once the server has seen everything said so far, subscriptions among it.

        Raises:
            Unanswered: the server did not say so in time.
        """
        try:
            await self._flush(timeout_s)
        except (TimeoutError, NatsError, OSError):
            raise Unanswered("PING", f"no answer within {timeout_s:g} s") from None

    async def _flush(self, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            # nats-py writes its PING ahead of what is still queued; only behind that does the answer say anything.
            while self.raw.pending_data_size:  # noqa: ASYNC110 - the queue is nats-py's and tells nobody
                await asyncio.sleep(QUEUE_LOOK_EVERY_S)
            await self.raw.flush()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is queued, then close; at most `timeout_s` for each when the server does not take it."""
        try:
            if self.raw.is_connected:
                await self._flush(timeout_s)
        except (TimeoutError, NatsError, OSError):
            pass
        # One by one: while the server is away nats-py's own close fails before it comes to them.
        for subscription in tuple(self._subscriptions):
            await self.unsubscribe(subscription)
        try:
            async with asyncio.timeout(timeout_s):
                await self.raw.close()
        except (TimeoutError, NatsError, OSError):
            pass
        await self.ended()

    # What nats-py calls back.

    async def heard_error(self, error: Exception) -> None:
        """Note what the broker or the socket said; refused credentials end the first connect.

        nats-py tells in the same way of what a subscription's callback raised: nobody else hears of that.
        """
        known, self.last_error = self.last_error, error
        if not isinstance(error, NatsError | BrokerError | OSError | TimeoutError) and repr(error) != repr(known):
            _log.error("connection %s: what heard a message failed, a bug of runfold's own", self.name, exc_info=error)
        if isinstance(error, SlowConsumerError):
            self.dropped_count += 1
        if "authorization violation" in str(error).lower() and not self.refused.done():
            self.refused.set_result(str(error))

    async def lost(self) -> None:
        """Note that the server is away."""
        self._up.clear()
        self._give_up_waiting()
        self._tell()

    async def found(self) -> None:
        """Note that the server is back."""
        self.generation += 1
        self._up.set()
        self._tell()

    async def ended(self) -> None:
        """Note that nothing more comes; whoever waits is woken and finds it closed."""
        self._up.set()
        self._give_up_waiting()
        self._tell()

    def _give_up_waiting(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    async def open(self, url: str, pending_max_bytes: int) -> None:
        """Connect for the first time, without a limit of its own."""
        user, password, token = _credentials(url)
        await self._raw_client.connect(
            url,
            name=self.name,
            inbox_prefix=self.role.inbox,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # annotated int, slept as given
            connect_timeout=TCP_CONNECT_TIMEOUT_S,
            ping_interval=PING_EVERY_S,
            max_outstanding_pings=PINGS_OUTSTANDING_MAX,
            drain_timeout=int(CLOSE_TIMEOUT_S),
            pending_size=pending_max_bytes,
            error_cb=self.heard_error,
            disconnected_cb=self.lost,
            reconnected_cb=self.found,
            closed_cb=self.ended,
            user=user,
            password=password,
            token=token,
        )
        self._up.set()


def _credentials(url: str) -> tuple[str | None, str | None, str | None]:
    """Return user, password and token in an address, unquoted: nats-py would send them as they stand."""
    parts = urlsplit(url.partition(",")[0])
    if parts.username is None:
        return None, None, None
    if parts.password is None:
        return None, None, unquote(parts.username)
    return unquote(parts.username), unquote(parts.password), None


async def connect(
    url: str,
    *,
    role: Role,
    name: str,
    names: Names | None = None,
    pending_max_bytes: int = PENDING_MAX_BYTES,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> Connection:
    """Connect as a user; once connected it stays so for as long as it takes, until `close`.

    Raises:
        BrokerUnreachable: no server answered in time, or it refused the credentials.
    """
    connection = Connection(role, name, without_credentials(url), names or Names())
    opening = asyncio.ensure_future(connection.open(url, pending_max_bytes))
    try:
        first: set[asyncio.Future[None] | asyncio.Future[str]] = {opening, connection.refused}
        await asyncio.wait(first, timeout=connect_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
            return connection
    except (NatsError, OSError, ValueError) as error:
        raise BrokerUnreachable(f"cannot connect to {connection.server}: {error}") from error
    finally:
        if not opening.done() or opening.cancelled() or opening.exception() is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await connection.close()
    if connection.refused.done():
        why = connection.refused.result()
        raise BrokerUnreachable(f"{connection.server} refuses the credentials of {role.value}: {why}")
    why = f": {connection.last_error}" if connection.last_error is not None else ""
    raise BrokerUnreachable(f"no broker answered at {connection.server} within {connect_timeout_s:g} s{why}")
