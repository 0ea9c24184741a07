"""The few calls of nats-py that we use, with exact types; its own are partly unknown to a strict checker.

JetStream is spoken here as what it is: requests with JSON bodies on `$JS.API.>`, and messages on our inboxes.
nats-py's JetStream layer is left alone: its `publish_async` never reports an API error, and its ordered consumer
goes on after a reconnect without a look at what the stream has become.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


class RawMessage(Protocol):
    """A message as it arrived."""

    @property
    def subject(self) -> str:
        """Where it was sent."""
        ...

    @property
    def reply(self) -> str:
        """Where an answer is awaited; empty for nowhere."""
        ...

    @property
    def data(self) -> bytes:
        """Its bytes."""
        ...

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Its headers, with `Status` and `Description` when the server itself speaks."""
        ...


class RawSubscription(Protocol):
    """A subscription on a connection."""

    async def unsubscribe(self) -> None:
        """Hear nothing more; also stops its callback."""
        ...


class RawClient(Protocol):
    """The connection of nats-py."""

    @property
    def is_connected(self) -> bool:
        """Whether the server can be heard now."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether this connection was closed for good."""
        ...

    @property
    def pending_data_size(self) -> int:
        """How many bytes are queued and not yet written."""
        ...

    def new_inbox(self) -> str:
        """Return a subject that nobody else uses."""
        ...

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send a message."""
        ...

    async def subscribe(
        self,
        subject: str,
        *,
        cb: Callable[[RawMessage], Awaitable[None]],
        pending_msgs_limit: int,
        pending_bytes_limit: int,
    ) -> RawSubscription:
        """Call back with each message on a subject."""
        ...

    async def flush(self, timeout: int = 10) -> None:
        """Wait until the server has seen everything said so far."""
        ...

    async def close(self) -> None:
        """Close for good."""
        ...
