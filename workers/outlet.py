"""Where a rank's output goes: batches to the broker, as fast as they may, until the last one is kept."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Final

import msgspec

from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import ApiRefused, BrokerClosed, Unanswered
from runfold.events.nats.output import publish_output
from runfold.events.output import OutputBatch, OutputSource
from runfold.workers.logs import log_bug
from runfold.workers.output import OutputCut
from runfold.workers.stacks import crashed_at

OUTPUT_RETRY_S: Final = 0.5
DRAIN_TIMEOUT_S: Final = 5.0
"""How long the last output of an ended rank may take to be kept."""
_LOG: Final = logging.getLogger("runfold.workers")


class Outlet:
    """One rank's output of one process: `feed` what is read, `end` when it is over, `drained` at last."""

    def __init__(self, connection: Connection, cut: OutputCut) -> None:
        self._connection = connection
        self._cut = cut
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="output")
        self._task.add_done_callback(partial(log_bug, what="a rank's output is not kept any more"))

    def feed(self, source: OutputSource, data: bytes) -> None:
        """Take what was read of a stream."""
        self._cut.feed(source, data, time.monotonic(), time.time())
        self._wake.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._cut.end()
        self._wake.set()

    def last_lines(self) -> str:
        """Return the end of the output so far."""
        return self._cut.last_lines()

    def crashed_at(self, working_dir: str | None) -> str | None:
        """Return where in its user's code the process was when it crashed, if it could still write that."""
        return crashed_at(self._cut.tail(), working_dir)

    async def drained(self) -> None:
        """Wait until all that is kept is with the broker, for at most `drain_timeout_s`; then stop."""
        _, late = await asyncio.wait([self._task], timeout=DRAIN_TIMEOUT_S)
        if late:
            _LOG.warning("the broker did not take a rank's last output within %g s; it is not kept", DRAIN_TIMEOUT_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._cut.done:
            self._wake.clear()
            now = time.monotonic()
            batch = self._cut.batch(now)
            if batch is not None:
                await self._publish(batch)
                continue
            wake_at = self._cut.wake_at(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - now)):
                    await self._wake.wait()

    async def _publish(self, batch: OutputBatch) -> None:
        """Publish until it is kept; the number tells readers of repeats."""
        data = msgspec.json.encode(batch)
        while True:
            try:
                await self._connection.wait_up()
                await publish_output(self._connection, batch.run, batch.attempt, batch.rank, data)
            except BrokerClosed:
                return
            except Unanswered:
                await asyncio.sleep(OUTPUT_RETRY_S)
            except ApiRefused as error:
                _LOG.warning("%s: output of rank %d is not kept: %s", batch.run, batch.rank, error)
                return
            else:
                return
