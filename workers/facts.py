"""A source about one run: joins it, publishes its facts, and learns what of them is folded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.beats import Folded
from runfold.events.facts import AnyFact
from runfold.events.nats.client import RawMessage, RawSubscription
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import BrokerClosed, Unanswered
from runfold.events.nats.publish import Acked, Rejected, publish_acked
from runfold.events.requests import Join
from runfold.workers.logs import log_bug
from runfold.workers.spool import FactBytes, Spool

JOIN_REPEAT_S: Final = 1.0
JOIN_REPEAT_MAX_S: Final = 10.0
"""The inbox keeps a request: while no controller answers it is repeated ever more rarely."""
PUBLISH_TIMEOUT_S: Final = 2.0
PUBLISH_RETRY_S: Final = 0.2
"""After a message that was refused or got no answer; the same bytes are sent again, without a limit."""
SUBSCRIBE_RETRY_S: Final = 0.5

_LOG: Final = logging.getLogger("runfold.workers")
_FOLDED: Final = msgspec.json.Decoder(Folded)


class Facts:
    """Speaks for `source` about `run`. `start` it, `say` facts, `hear` assignments, `close` it.

    `on_change` is called when the spool has become full or has room again, and when `crashed` is set: a bug of ours,
    which the owner must not outlive. `superseded` turns true when the log has given the source's name to a newer
    process: then nothing is said any more.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        run: str,
        source: str,
        boot: str,
        flush_s: float,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.run = run
        self.source = source
        self.boot = boot
        self.superseded = False
        self.crashed: BaseException | None = None
        self.spool = Spool(run, source, flush_s=flush_s)
        self._connection = connection
        self._subjects = connection.names.subjects
        self._on_change = on_change
        self._was_full = False
        self._refusal = ""
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._joined = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: RawSubscription | None = None
        # The entry, and its epoch, by which this process is known to have the source's name.
        self._joined_by = (0, 0)
        # Which incarnation the source has by now, as far as this process has heard; None before it has.
        self._after: int | None = None
        self._ask = asyncio.Event()
        self._unsaid_since: float | None = None

    def start(self) -> None:
        """Begin to join and to publish."""
        for work, name in ((self._join, "join"), (self._publish, "publish"), (self._listen, "folded")):
            task = asyncio.create_task(work(), name=f"{name} {self.run}")
            task.add_done_callback(self._note_end)
            self._tasks.append(task)

    def say(self, fact: AnyFact) -> None:
        """Take a fact; it is numbered here. Raises `FactTooLargeError` when it fits in no message."""
        self.spool.add(fact, time.monotonic())
        self._stir()

    def hear(self, assignment: Assignment) -> None:
        """Take what an assignment says of this source: its incarnation, what is folded of it."""
        if assignment.job is not None:
            self.spool.flush_s = assignment.job.timeouts.report_flush_s
        given = next((one for one in assignment.joined if one.source == self.source), None)
        self._note_name(0 if given is None else given.incarnation)
        if given is None:
            return
        if given.boot == self.boot:
            if not self._joined.is_set():
                self._joined_by = (assignment.epoch, assignment.n)
            self.spool.join(given.incarnation, time.monotonic())
            self._joined.set()
            self._ask.set()
        elif self.spool.incarnation is not None:
            self.superseded = True
        if self.spool.incarnation == given.incarnation:
            self._take_folded(assignment.folded)

    def _note_name(self, incarnation: int) -> None:
        """Ask for the name, or ask again, when it is free or another process has it."""
        if not self._joined.is_set() and incarnation != self._after:
            self._after = incarnation
            self._ask.set()

    def unsaid_s(self, now: float) -> float:
        """Return for how long the broker has not taken what is to be said; 0 while nothing waits for it."""
        return round(now - self._unsaid_since, 1) if self._unsaid_since is not None else 0.0

    async def settled(self, timeout_s: float) -> bool:
        """Wait until the broker holds everything said; False when it does not within the time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.spool.settled:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End without a further word; what is not acknowledged is dropped."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)
            self._subscription = None

    # --- the tasks

    async def _join(self) -> None:
        subject = self._subjects.request(self.run, "join")
        pause_s = JOIN_REPEAT_S
        await self._ask.wait()
        while not self._joined.is_set():
            self._ask.clear()
            join = Join(id=self.boot, source=self.source, boot=self.boot, after=self._after)
            await self._send(subject, msgspec.json.encode(join))
            try:
                async with asyncio.timeout(pause_s):
                    await self._ask.wait()
            except TimeoutError:
                pause_s = min(pause_s * 2, JOIN_REPEAT_MAX_S)

    async def _publish(self) -> None:
        await self._joined.wait()
        while True:
            self._wake.clear()
            now = time.monotonic()
            message = None if self.superseded else self.spool.message(now)
            if message is None:
                await self._nap(self.spool.wake_at(now), now)
            elif await self._publish_once(message):
                self.spool.acked(message, time.monotonic())
                self._moved.set()
            else:
                await asyncio.sleep(PUBLISH_RETRY_S)

    async def _publish_once(self, message: FactBytes) -> bool:
        return await self._send(self._subjects.fact(self.run, message.attempt, self.source), message.data)

    async def _send(self, subject: str, data: bytes) -> bool:
        """Publish once; False when it is to be sent again."""
        if self._unsaid_since is None:
            self._unsaid_since = time.monotonic()
        try:
            await self._connection.wait_up()
            match await publish_acked(self._connection, subject, data, timeout_s=PUBLISH_TIMEOUT_S):
                case Acked():
                    self._unsaid_since = None
                    return True
                case Rejected() as refused:
                    self._note_refusal(refused.description)
        except Unanswered as error:
            _LOG.info("%s: %s; sending it again", self.run, error)
        except BrokerClosed:
            await asyncio.Event().wait()  # the owner closes us next
        return False

    def _note_refusal(self, why: str) -> None:
        if why != self._refusal:
            _LOG.warning("%s: the broker refuses what %s says: %s; trying on", self.run, self.source, why)
            self._refusal = why

    def _note_end(self, task: asyncio.Task[None]) -> None:
        log_bug(task, f"{self.run}: {self.source} says nothing more")
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crashed = error
            self._tell_owner()

    async def _nap(self, wake_at: float | None, now: float) -> None:
        timeout_s = None if wake_at is None or self.superseded else max(0.0, wake_at - now)
        # Not `wait_for`, which before Python 3.12 loses a cancellation that comes with what is waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()

    async def _listen(self) -> None:
        while self._subscription is None:
            try:
                subject = self._subjects.folded(self.run)
                self._subscription = await self._connection.subscribe(subject, self._heard_folded)
            except Unanswered:
                await asyncio.sleep(SUBSCRIBE_RETRY_S)

    async def _heard_folded(self, message: RawMessage) -> None:
        try:
            folded = _FOLDED.decode(message.data)
        except msgspec.DecodeError:
            return
        # What was said before that speaks of the source's former life: its numbers are not ours.
        if self._joined.is_set() and (folded.epoch, folded.n) >= self._joined_by:
            self._take_folded(folded.folded)

    def _take_folded(self, folded: dict[str, int]) -> None:
        if self.spool.incarnation is not None and (number := folded.get(self.source)) is not None:
            self.spool.folded(number, time.monotonic())
            self._stir()

    def _stir(self) -> None:
        self._wake.set()
        self._moved.set()
        if self.spool.full != self._was_full:
            self._was_full = self.spool.full
            self._tell_owner()

    def _tell_owner(self) -> None:
        if self._on_change is not None:
            self._on_change()
