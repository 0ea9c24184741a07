"""What ranks printed: numbered batches on a subject of each attempt and rank, the oldest dropped first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runfold.events import limits
from runfold.events.nats.consume import Delivered, Follower
from runfold.events.nats.direct import read_batch
from runfold.events.nats.errors import ApiRefused
from runfold.events.nats.publish import Rejected, publish_acked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from runfold.events.nats.connection import Connection

ANSWER_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """A batch of a rank's output as it was published."""

    run: str
    attempt: int
    rank: int
    sequence: int
    data: bytes


async def publish_output(
    connection: Connection, run: str, attempt: int, rank: int, data: bytes, *, timeout_s: float = ANSWER_TIMEOUT_S
) -> None:
    """Publish a batch of a rank's output and wait until it is kept.

    Raises:
        ValueError: it is larger than `OUTPUT_BATCH_MAX_BYTES`.
        Unanswered: it may or may not be kept (its number tells repeats).
        ApiRefused: the broker refuses it.
    """
    if len(data) > limits.OUTPUT_BATCH_MAX_BYTES:
        raise ValueError(f"a batch of {len(data)} bytes: the limit is {limits.OUTPUT_BATCH_MAX_BYTES}; cut it")
    subject = connection.names.subjects.output(run, attempt, rank)
    answer = await publish_acked(connection, subject, data, timeout_s=timeout_s)
    if isinstance(answer, Rejected):
        raise ApiRefused(subject, answer.code, answer.err_code, answer.description)


async def read_output(
    connection: Connection, run: str, *, attempt: int | str = "*", rank: int | str = "*", after: int = 0
) -> AsyncIterator[OutputBatch]:
    """Yield the batches kept of a run (of one attempt, of one rank), in the order in which they were kept.

    Raises:
        Unanswered: the broker stopped answering; what was yielded is good.
    """
    names = connection.names
    subject = names.subjects.output(run, attempt, rank)
    while batch := await read_batch(connection, names.output, subject, after + 1):
        for message in batch:
            parts = names.subjects.parse_output(message.subject)
            if parts is not None:
                yield OutputBatch(*parts, message.sequence, message.data)
        after = batch[-1].sequence


def follow_output(
    connection: Connection,
    run: str,
    on_batch: Callable[[OutputBatch], None],
    *,
    attempt: int | str = "*",
    rank: int | str = "*",
    after: int = 0,
) -> Follower:
    """Call `on_batch` with each batch kept after a sequence, then with each new one; started.

    `on_batch` is a plain function and must not raise. The caller closes what is returned.
    """
    names = connection.names

    def deliver(message: Delivered) -> None:
        parts = names.subjects.parse_output(message.subject)
        if parts is not None:
            on_batch(OutputBatch(*parts, message.sequence, message.data))

    subject = names.subjects.output(run, attempt, rank)
    follower = Follower(connection, names.output, [subject], deliver, after=after)
    follower.start()
    return follower
