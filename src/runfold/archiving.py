"""The archiver: follows every run's log beside the controllers, and writes what is new of it, segment by segment.

It only ever reads the log. An archive that cannot be reached delays nothing, and is caught up when it can.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.agenda import Agenda
from runfold.archiver import archive_run
from runfold.events.limits import ARCHIVE_EVERY_LOCAL_S, ARCHIVE_EVERY_REMOTE_S
from runfold.events.log import LogUnavailable
from runfold.events.nats.errors import BrokerClosed, BrokerError
from runfold.events.status import Status
from runfold.growing import Growing
from runfold.replay.archive import archive_path
from runfold.replay.errors import ReplayError
from runfold.replay.store import is_url, open_store
from runfold.replay.unarchive import read_last

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runfold.client import Client
    from runfold.events.nats.consume import Delivered

WRITERS_COUNT: Final = 2
"""How many runs are archived at the same time."""

RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


@dataclass(slots=True)
class _Run:
    """A run being archived: how far its archive goes, and what of it is still to be done."""

    head_n: int = -1
    ended: bool = False
    retry_s: float = RETRY_MIN_S
    refused: str = ""
    growing: Growing | None = None


class Archiver:
    """Keeps the archive of every run that the service knows; `say` hears of what could not be done."""

    def __init__(self, client: Client, data_dir: Path, say: Callable[[str], None]) -> None:
        self._client = client
        self._data_dir = data_dir
        self._say = say
        self._every_s = ARCHIVE_EVERY_REMOTE_S if is_url(str(data_dir)) else ARCHIVE_EVERY_LOCAL_S
        self._runs: dict[str, _Run] = {}
        self._agenda = Agenda()

    async def run(self) -> None:
        """Archive until cancelled."""
        names = self._client.names
        bucket = names.status_bucket
        stream, filters = names.stream_of(bucket), [names.key_subject(bucket, "*")]
        async with self._client.following(stream, filters, self._take, last_per_subject=True):
            async with asyncio.TaskGroup() as owner:
                for _ in range(WRITERS_COUNT):
                    owner.create_task(self._write(), name="archive")

    async def keep(self, run: str, over: asyncio.Event) -> None:
        """Write what is new of one run until it is `over`; nothing is being written any more when this returns."""
        kept = _Run()
        while not over.is_set():
            try:
                async with asyncio.timeout(max(self._every_s, kept.retry_s)):
                    await over.wait()
            except TimeoutError:
                await self._archive(run, kept)

    def _take(self, message: Delivered) -> None:
        try:
            status = msgspec.json.decode(message.data, type=Status)
        except msgspec.DecodeError:
            return  # a purged run's, or not a status
        run = self._runs.setdefault(status.run, _Run())
        if status.head.n > run.head_n or status.terminal:
            run.head_n, run.ended = status.head.n, status.terminal
            self._agenda.want(status.run, RETRY_MAX_S if run.refused else self._every_s, urgent=run.ended)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            name = await self._agenda.next()
            began = loop.time()
            try:
                await self._archive(name, self._runs.setdefault(name, _Run(ended=True)))
            finally:
                self._agenda.done(name)
            # Runs come first: whoever archives a hundred of them rests as long as it works.
            await self._agenda.rest(min(loop.time() - began, self._every_s))

    async def _archive(self, name: str, run: _Run) -> None:
        try:
            if run.ended:
                await self._finish(name)
                self._runs.pop(name, None)
            else:
                await self._go_on(name, run)
            run.retry_s, run.refused = RETRY_MIN_S, ""
        except BrokerClosed:
            raise
        except ReplayError as error:
            if str(error) != run.refused:
                self._say(f"{name} is not archived: {error}")
            run.refused, run.growing = str(error), None
        except (BrokerError, LogUnavailable, OSError) as error:
            if run.retry_s == RETRY_MIN_S:
                self._say(f"{name} is archived later: {error}")
            run.growing = None
            run.retry_s = min(2 * run.retry_s, RETRY_MAX_S)
            self._agenda.want(name, run.retry_s)

    async def _finish(self, name: str) -> None:
        """Close the archive of a run that has ended, unless it is closed already."""
        status = await self._client.status(name)
        last = await asyncio.to_thread(read_last, open_store(archive_path(self._data_dir, name)))
        if last is None or status is None or last.head != status.head:
            await archive_run(self._client, name, self._data_dir)

    async def _go_on(self, name: str, run: _Run) -> None:
        """Write what is new, in segments."""
        if run.growing is None:
            run.growing = Growing(self._client, open_store(archive_path(self._data_dir, name)), name)
        await run.growing.go_on(run.head_n)
