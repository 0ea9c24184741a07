"""Stores of one last value a key: the key-value buckets, and the assignments.

Writing is publishing with the expected sequence of the key's last message, so that an old writer is refused
instead of making its old value the current one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runfold.events.nats.api import Api
from runfold.events.nats.consume import Delivered, Follower
from runfold.events.nats.errors import ApiRefused, Unanswered
from runfold.events.nats.names import Names
from runfold.events.nats.publish import EXPECTED_SUBJECT_SEQUENCE, TTL, Acked, publish_acked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runfold.events.nats.connection import Connection

PUT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 10.0

_OPERATION: Final = "KV-Operation"
_MARKER: Final = "Nats-Marker-Reason"


@dataclass(frozen=True, slots=True)
class Cell:
    """The last message of a key. `data` is None when the value was deleted or has expired."""

    key: str
    data: bytes | None
    sequence: int
    stored_at_s: float


@dataclass(frozen=True, slots=True)
class Written:
    """The value stands at this sequence."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Clash:
    """Not written: the key's last sequence is another than expected."""

    description: str


class Cells:
    """The values of one store, by key. Made by the functions below."""

    def __init__(self, connection: Connection, stream: str, before: str, after: str = "") -> None:
        self._connection = connection
        self._stream = stream
        self._before = before
        self._after = after
        self._api = Api(connection)

    def subject(self, key: str) -> str:
        """Return the subject of a key."""
        return f"{self._before}{key}{self._after}"

    def key(self, subject: str) -> str:
        """Return the key of a subject."""
        return subject.removeprefix(self._before).removesuffix(self._after)

    async def get(self, key: str) -> Cell | None:
        """Return a key's last message as the stream's leader knows it; None when it never had one.

        Raises:
            Unanswered: the broker does not answer.
        """
        found = await self._api.last_message(self._stream, self.subject(key))
        if found is None:
            return None
        return Cell(key, _value(found.data, found.headers), found.sequence, found.stored_at_s)

    async def put(
        self, key: str, data: bytes, *, expected: int | None, ttl_s: int | None = None, timeout_s: float = PUT_TIMEOUT_S
    ) -> Written | Clash:
        """Write a value if the key's last sequence is `expected` (0: it never had one; None: whatever it is).

        With `ttl_s` (whole seconds, where the store allows it) the value expires by itself.

        Raises:
            Unanswered: it may or may not have been written; `get` tells.
            ApiRefused: the store has no room, or this user no right.
        """
        headers: dict[str, str] = {}
        if ttl_s is not None:
            headers[TTL] = f"{ttl_s}s"
        return await self._write(key, data, headers, expected, timeout_s)

    async def delete(self, key: str, *, expected: int) -> Written | Clash:
        """Delete a value if the key's last sequence is `expected`; a marker stays in its place."""
        return await self._write(key, b"", {_OPERATION: "DEL"}, expected, PUT_TIMEOUT_S)

    async def read_all(self, timeout_s: float = READ_TIMEOUT_S) -> dict[str, Cell]:
        """Return the last message of every key of one part (`storage.x` has two).

        Raises:
            Unanswered: not all of them arrived in time.
        """
        cells: dict[str, Cell] = {}
        follower = self.follow(lambda cell: cells.__setitem__(cell.key, cell))
        try:
            if not await follower.wait_caught_up(timeout_s):
                raise Unanswered(self.subject("*"), f"the values did not arrive within {timeout_s:g} s")
        finally:
            await follower.close()
        return cells

    def follow(self, on_cell: Callable[[Cell], None], *, key: str = "*") -> Follower:
        """Call `on_cell` with the last message of each key (or of one), then with each change; started.

        `on_cell` is a plain function and must not raise. After the broker was away a value may come again: readers
        ignore one not newer than what they hold. The caller closes what is returned.
        """

        def deliver(message: Delivered) -> None:
            on_cell(
                Cell(
                    self.key(message.subject),
                    _value(message.data, message.headers),
                    message.sequence,
                    message.stored_at_s,
                )
            )

        follower = Follower(self._connection, self._stream, [self.subject(key)], deliver, last_per_subject=True)
        follower.start()
        return follower

    async def _write(
        self, key: str, data: bytes, headers: dict[str, str], expected: int | None, timeout_s: float
    ) -> Written | Clash:
        if expected is not None:
            headers[EXPECTED_SUBJECT_SEQUENCE] = str(expected)
        subject = self.subject(key)
        answer = await publish_acked(self._connection, subject, data, headers, timeout_s=timeout_s)
        if isinstance(answer, Acked):
            return Written(answer.sequence)
        if answer.wrong_last_sequence:
            return Clash(f"{key}: {answer.description}")
        raise ApiRefused(subject, answer.code, answer.err_code, answer.description)


def assignment_cells(connection: Connection) -> Cells:
    """Return the assignments, by run."""
    before, _, after = connection.names.subjects.assignment("*").partition("*")
    return Cells(connection, connection.names.assignments, before, after)


def status_cells(connection: Connection) -> Cells:
    """Return the statuses, by run."""
    return bucket_cells(connection, connection.names.status_bucket)


def owner_cells(connection: Connection) -> Cells:
    """Return who owns what: runs by id, `storage.<digest>`, `pool.<name>`."""
    return bucket_cells(connection, connection.names.owners_bucket)


def lease_cells(connection: Connection) -> Cells:
    """Return the leases, by controller."""
    return bucket_cells(connection, connection.names.leases_bucket)


def snapshot_cells(connection: Connection) -> Cells:
    """Return the snapshots, by `<run>.<n>`."""
    return bucket_cells(connection, connection.names.snapshots_bucket)


def bucket_cells(connection: Connection, bucket: str) -> Cells:
    """Return the values of a key-value bucket."""
    return Cells(connection, Names.stream_of(bucket), Names.key_subject(bucket, ""))


def _value(data: bytes, headers: Mapping[str, str]) -> bytes | None:
    return None if _OPERATION in headers or _MARKER in headers else data
