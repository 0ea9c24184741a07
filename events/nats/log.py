"""A run's log on JetStream, under the port of `runfold.events.log`: promise 3, one writer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from runfold.events import limits
from runfold.events.entry import hash_entry, is_link
from runfold.events.log import Appended, AppendResult, Damaged, Fenced, LogFull, LogUnavailable, Stored
from runfold.events.nats.api import Api
from runfold.events.nats.direct import read_batch
from runfold.events.nats.errors import ApiRefused, Unanswered
from runfold.events.nats.publish import EXPECTED_SUBJECT_SEQUENCE, MSG_ID, Acked, Rejected, publish_acked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runfold.events.nats.api import StoredMessage
    from runfold.events.nats.connection import Connection

STRAYS_PER_APPEND_MAX: Final = 64
"""How often one call appends after yet another stray, before it asks to be called again."""

TURNS_TO_ASK_COUNT: Final = 3
"""Turns of the loop until a request is on its way: the broker reads on while what it gave is looked at."""

_TEMPORARY: Final = 503


class JetStreamLog:
    """One run's log (see `runfold.events.log.Log`). `connection` should keep nothing while the server is away."""

    def __init__(
        self,
        connection: Connection,
        run: str,
        *,
        generation: int = 1,
        append_timeout_s: float = limits.APPEND_TIMEOUT_S,
    ) -> None:
        self.run = run
        self.generation = generation
        self.subject = connection.names.subjects.log(run, generation)
        self._strays: set[int] = set()
        self._connection = connection
        self._stream = connection.names.log
        self._api = Api(connection)
        self._append_timeout_s = append_timeout_s

    @property
    def strays_count(self) -> int:
        """How many messages that are no entries stood in the way of an append."""
        return len(self._strays)

    async def append(self, data: bytes, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult:
        """Append one entry's bytes after `last_sequence`; see the port.

        Raises:
            LogUnavailable: no definite answer; call again with the same arguments.
            LogFull: the stream has no more room.
            ApiRefused: the broker refuses this message for good (too large, or no right to write).
        """
        expected = last_sequence
        headers = {MSG_ID: f"{self.run}.{self.generation}.{n}.{digest}"}
        for _ in range(STRAYS_PER_APPEND_MAX):
            answer = await self._publish(data, {**headers, EXPECTED_SUBJECT_SEQUENCE: str(expected)})
            if isinstance(answer, Acked) and not answer.duplicate:
                return Appended(sequence=answer.sequence)
            if isinstance(answer, Rejected) and not answer.wrong_last_sequence:
                raise self._refusal(answer)
            # Something stands there already: perhaps these bytes, by a try whose answer was lost.
            judged = await self._judge(n=n, digest=digest, prev=prev, last_sequence=last_sequence)
            if not isinstance(judged, int):
                return judged
            if isinstance(answer, Acked):
                # Swallowed as the repeat of a message that is not ours: the expected sequence protects without it.
                headers = {}
            elif judged == expected:
                raise LogUnavailable(f"the log of {self.run} refused entry {n}, and nothing stands in its way")
            expected = judged
        raise LogUnavailable(f"strays keep arriving on {self.subject}: entry {n} is not appended yet")

    async def read(self, after_sequence: int = 0) -> AsyncIterator[Stored]:
        """Yield every stored message after a sequence up to the newest, strays included, in order.

        Raises:
            LogUnavailable: the broker stopped answering; what was yielded is good.
        """
        last = await self.last_sequence()
        if after_sequence >= last:
            return
        asked = asyncio.ensure_future(self._batch(after_sequence))
        try:
            while batch := await asked:
                position = batch[-1].sequence
                if position < last:
                    asked = asyncio.ensure_future(self._batch(position))
                    for _ in range(TURNS_TO_ASK_COUNT):
                        await asyncio.sleep(0)
                for message in batch:
                    yield Stored(sequence=message.sequence, data=message.data, stored_at_s=message.stored_at_s)
                if position >= last:
                    return
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    async def _batch(self, after_sequence: int) -> list[StoredMessage]:
        try:
            batch = await read_batch(self._connection, self._stream, self.subject, after_sequence + 1)
            if batch:
                return batch
            # A replica that lags: the leader has it.
            found = await self._api.next_message(self._stream, self.subject, after_sequence + 1)
        except Unanswered as error:
            raise LogUnavailable(f"the log of {self.run} cannot be read on: {error}") from error
        return [] if found is None else [found]

    async def last_sequence(self) -> int:
        """Return the last sequence on this subject, as the stream's leader knows it; 0 when there is none.

        Raises:
            LogUnavailable: the broker does not answer.
        """
        try:
            message = await self._api.last_message(self._stream, self.subject)
        except Unanswered as error:
            raise LogUnavailable(f"the end of the log of {self.run} is not known: {error}") from error
        return 0 if message is None else message.sequence

    async def _publish(self, data: bytes, headers: dict[str, str]) -> Acked | Rejected:
        try:
            return await publish_acked(self._connection, self.subject, data, headers, timeout_s=self._append_timeout_s)
        except Unanswered as error:
            raise LogUnavailable(f"the append to the log of {self.run} was not answered: {error}") from error

    async def _judge(self, *, n: int, digest: str, prev: str, last_sequence: int) -> AppendResult | int:
        """Read on from the last sequence known: the first valid link decides; strays are stepped over.

        Return a sequence when only strays stand there: the append belongs after it.
        """
        position, strays = last_sequence, set[int]()
        while True:
            try:
                found = await self._api.next_message(self._stream, self.subject, position + 1)
            except Unanswered as error:
                raise LogUnavailable(f"what stands in the log of {self.run} is not known: {error}") from error
            if found is None:
                break
            if hash_entry(found.data) == digest:
                return Appended(sequence=found.sequence)
            if is_link(found.data, self.run, n, prev):
                return Fenced(sequence=found.sequence, hash=hash_entry(found.data))
            position = found.sequence
            strays.add(position)
        last = await self.last_sequence()
        if last < last_sequence:
            return Damaged(expected_sequence=last_sequence, found_sequence=last)
        self._strays |= strays
        return position

    def _refusal(self, answer: Rejected) -> Exception:
        if answer.full:
            return LogFull(f"the log stream has no more room ({answer.description}): nothing was stored or lost")
        if answer.code == _TEMPORARY:
            return LogUnavailable(f"the log of {self.run} is not available: {answer.description}")
        return ApiRefused(self.subject, answer.code, answer.err_code, answer.description)
