"""Reading INBOX: what was said to one run, in order, from where its log stopped; and what is done is removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runfold.events.nats.api import Api, StreamInfo
from runfold.events.nats.consume import Delivered, Follower

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.events.nats.connection import Connection


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message to a run: its subject says whether it is a fact or a request."""

    subject: str
    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class InboxReset:
    """The inbox is not the one the cursor was taken of: it is read from its start, and sources must repeat."""

    identity: str
    last_sequence: int
    reason: str


class Inbox:
    """One run's inbox, followed from after its cursor (stream identity, last sequence folded).

    `on_message` and `on_reset` are plain functions, run in the event loop. The consumer is made anew after each
    reconnect, and the stream's identity and last sequence are compared each time: `on_reset` tells of an inbox
    that was made anew or has become shorter, before its messages come.
    """

    def __init__(
        self,
        connection: Connection,
        run: str,
        *,
        cursor: tuple[str, int] | None,
        on_message: Callable[[InboxMessage], None],
        on_reset: Callable[[InboxReset], None],
    ) -> None:
        self._identity = cursor[0] if cursor is not None else None
        self._on_message = on_message
        self._on_reset = on_reset
        self._follower = Follower(
            connection,
            connection.names.inbox,
            connection.names.subjects.inbox(run),
            self._deliver,
            after=cursor[1] if cursor is not None else 0,
            resume=self._resume,
        )

    @property
    def identity(self) -> str | None:
        """Which stream is read: the time of its creation; None until it was first looked at without a cursor."""
        return self._identity

    @property
    def position(self) -> int:
        """The sequence of the last message delivered; with `identity`, a cursor once it is folded."""
        return self._follower.position

    @property
    def caught_up(self) -> bool:
        """Whether nothing stored for this run is unread, as far as the server was heard a moment ago."""
        return self._follower.caught_up

    def start(self) -> None:
        """Begin to deliver."""
        self._follower.start()

    def pause(self) -> None:
        """Deliver nothing more for now; `go_on` goes on behind the last message. May be called by `on_message`."""
        self._follower.pause()

    def go_on(self) -> None:
        """Deliver again after a `pause`."""
        self._follower.go_on()

    async def wait_caught_up(self, timeout_s: float) -> bool:
        """Wait until nothing stored is unread; False when there still is after the time."""
        return await self._follower.wait_caught_up(timeout_s)

    async def wait_ended(self) -> None:
        """Wait until reading ends by itself (connection closed, stream gone), and raise why; return when closed."""
        await self._follower.wait_ended()

    async def close(self) -> None:
        """End reading; nothing is delivered after this returns."""
        await self._follower.close()

    def _deliver(self, message: Delivered) -> None:
        self._on_message(InboxMessage(message.subject, message.sequence, message.data))

    def _resume(self, info: StreamInfo, position: int) -> int:
        known, self._identity = self._identity, info.created
        if known is not None and known != info.created:
            reason = f"the inbox was made anew on {info.created}; the one read before was of {known}"
        elif info.state.last_seq < position:
            reason = f"the inbox ends at {info.state.last_seq}, before {position}, which was read already"
        else:
            return position
        self._on_reset(InboxReset(info.created, info.state.last_seq, reason))
        return 0


async def purge_inbox(connection: Connection, run: str, up_to: int) -> int:
    """Remove what a run has folded, up to its cursor's sequence; return how many messages that were."""
    api = Api(connection)
    subjects = connection.names.subjects.inbox(run)
    return sum([await api.purge(connection.names.inbox, subject, up_to) for subject in subjects])
