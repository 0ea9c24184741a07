"""Our own publisher into streams: one request, one typed answer, and a limit on the wait.

nats-py's `publish_async` never tells of an API error and waits for ever over a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events.nats.errors import Unanswered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.nats.connection import Connection

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
TTL: Final = "Nats-TTL"

# Never `Nats-Expected-Last-Msg-Id`: on a replicated stream one mismatch ends the stream for good.

WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
"""The two codes by which the server refuses an unexpected last sequence; the second carries no number."""

STORE_FULL: Final = frozenset({10077, 10023, 10047})


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class Acked:
    """Stored, as far as the stream promises; `duplicate` when it already was, by its message id."""

    stream: str
    sequence: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not stored, and the reason."""

    code: int
    err_code: int
    description: str

    @property
    def wrong_last_sequence(self) -> bool:
        """Whether another message came before this one."""
        return self.err_code in WRONG_LAST_SEQUENCE

    @property
    def full(self) -> bool:
        """Whether the stream or the store has no more room."""
        return self.err_code in STORE_FULL


_answers = msgspec.json.Decoder(_Answer)


async def publish_acked(
    connection: Connection, subject: str, data: bytes, headers: Mapping[str, str] | None = None, *, timeout_s: float
) -> Acked | Rejected:
    """Publish into a stream and wait for its acknowledgement.

    Raises:
        Unanswered: it may or may not have been stored; the same bytes and headers may be sent again.
        BrokerClosed: the connection was closed.
    """
    message = await connection.request(subject, data, headers=headers, timeout_s=timeout_s)
    try:
        answer = _answers.decode(message.data)
    except msgspec.DecodeError as error:
        raise Unanswered(subject, f"the answer was no acknowledgement ({error})") from None
    if answer.error is not None:
        return Rejected(answer.error.code, answer.error.err_code, answer.error.description)
    if not answer.stream or not answer.seq:
        raise Unanswered(subject, "the answer was no acknowledgement")
    return Acked(answer.stream, answer.seq, answer.duplicate)
