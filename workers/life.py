"""One life of a rank, as its runner sees it: from the wish to start it to the last word about its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from typing import Final

import msgspec

from runfold.events.beats import RankPhase
from runfold.events.facts import (
    AnyFact,
    RankExited,
    RankFailed,
    RankReturned,
    RankStarted,
    Reported,
)
from runfold.events.failures import ErrorInfo, FailureKind
from runfold.events.nats.blobs import Blobs, blob_digest
from runfold.events.nats.errors import BrokerError
from runfold.workers.collective import START, Collectives
from runfold.workers.ending import Ending
from runfold.workers.errors import SpawnError
from runfold.workers.handle import RankEnd, RankHandle, RankSource
from runfold.workers.link import (
    Asked,
    Collect,
    Entered,
    Failed,
    FromRank,
    FromRunner,
    Go,
    Hello,
    Imported,
    Inquire,
    Loaded,
    Paused,
    Report,
    Returned,
    Start,
    Uploading,
)
from runfold.workers.oom import oom_kills
from runfold.workers.outlet import Outlet
from runfold.workers.plan import Held
from runfold.workers.posture import Posture
from runfold.workers.prepare import Order, prepared
from runfold.workers.spool import About, FactTooLargeError, about

SAVES_REMEMBERED_MAX_COUNT: Final = 1024
VALUE_PUT_TIMEOUT_S: Final = 30.0
_LOG: Final = logging.getLogger("runfold.workers")


class _AboutRank(About):
    rank: int
    life: int


class RankLife:
    """Started by `begin`, asked to end by `end`. `over` once its process is gone and all facts about it are said.

    `handle` is its process, once there is one. `crashed` is a bug of ours, which the owner must not outlive.
    `uploading`: directories that it has begun to upload to and not reported. `saves`: the reports of the attempt that
    ranks of this node have, or had, files in.
    """

    def __init__(
        self,
        order: Order,
        *,
        spawner: RankSource,
        blobs: Blobs,
        outlet: Outlet,
        group: Collectives,
        say: Callable[[AnyFact], None],
        on_change: Callable[[], None],
        inquired: Callable[[int, Inquire], None] = lambda _rank, _inquiry: None,
        saves: set[int] | None = None,
    ) -> None:
        self._saves: set[int] = set() if saves is None else saves
        self._inquiry = inquired
        self.start = order.start
        self.phase: RankPhase = "starting"
        self.index = -1
        self.step: int | None = None
        self.over = False
        self.crashed: BaseException | None = None
        self.uploading: set[str] = set()
        self.posture = Posture()
        self._begins_from: str | None = None
        self._order = order
        self._spawner = spawner
        self._blobs = blobs
        self._outlet = outlet
        self._group = group
        self._say_fact = say
        self._on_change = on_change
        self.handle: RankHandle | None = None
        self._ending = Ending()
        self._signal: signal.Signals | None = None
        self._refused = False
        self._paused = False
        self._noted: set[str] = set()
        self._uploads: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start it, in the background."""
        self._task = asyncio.create_task(self._live(), name=f"rank {self.start.rank}")
        self._task.add_done_callback(self._note_end)

    @property
    def held(self) -> Held:
        """What the planner needs to know."""
        return Held(
            attempt=self.start.attempt,
            rank=self.start.rank,
            life=self.start.life,
            slot=self.start.slot,
            asked_s=self._ending.asked_s,
            killed=self._ending.killed,
        )

    @property
    def pid(self) -> int | None:
        """Its process, once there is one."""
        return self.handle.pid if self.handle is not None else None

    def note(self, text: str) -> None:
        """Put a line among what it prints, once: so it stands in the log of the run, should this be its end."""
        if text not in self._noted:
            self._noted.add(text)
            self._outlet.feed("stderr", f"runfold: {text}\n".encode())

    def end(self, *, kill: bool, now: float) -> None:
        """Ask it to end, or make it; one that is still being started ends as soon as it could be signalled.

        One whose function has returned is ending: its threads and what it registered with `atexit` have as long to go
        on as others have to end, and no signal cuts them short.
        """
        self._ending.ask(self.pid, now)
        if self.phase == "returned" and not kill:
            return
        self._ending.killed = self._ending.killed or kill
        self._signal = signal.SIGKILL if kill else signal.SIGTERM
        if self.handle is not None:
            self._uploads.append(asyncio.create_task(self._deliver_signal(self.handle), name="signal"))

    def cannot_meet(self, reason: str) -> None:
        """Its group's ranks cannot meet: it fails with that, unless it has ended."""
        if not self.over and self.phase in ("starting", "waiting", "running"):
            self._fail("rendezvous", "RendezvousError", reason)

    def pause(self, paused: bool) -> None:
        """Let its reports wait, or go on: the spool is full, or has room again."""
        self._paused = paused
        if self.handle is not None:
            (self.handle.pause if paused else self.handle.resume)()

    def send(self, message: FromRunner) -> None:
        """Send it a message."""
        self.posture.told(message)
        if self.handle is not None:
            self.handle.send(message)

    def go(self, message: Go) -> None:
        """Let it enter user code, at this beginning."""
        self._begins_from = message.checkpoint
        self.send(message)

    async def drained(self) -> None:
        """Wait until its output, and what was uploaded for it, is with the broker; bounded."""
        await self._outlet.drained()
        if self._uploads:
            await asyncio.wait(self._uploads, timeout=VALUE_PUT_TIMEOUT_S)
        for task in (*self._uploads, self._task):
            if task is not None:
                task.cancel()
        await asyncio.gather(*self._uploads, return_exceptions=True)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crashed = error
            self._on_change()

    # --- its life

    async def _live(self) -> None:
        try:
            start = await self._prepared()
            if start is not None and self._ending.asked_s is None:
                await self._run(start)
        except SpawnError as error:
            self._fail("runner", "SpawnError", f"its process could not be started: {error}")
        finally:
            self._group.leave(self.start.rank, "has ended")
            self._outlet.end()
            self.over = True
            self._on_change()

    async def _prepared(self) -> Start | None:
        """Return the start with all that it needs; None, and that told, when something cannot be had."""
        order = self._order
        if order.obstacle is not None:
            self._fail("load", "LoadError", order.obstacle)
            return None
        try:
            return await prepared(order, self._blobs)
        except (BrokerError, msgspec.DecodeError) as error:
            self._fail("fetch", type(error).__name__, str(error))
            return None

    async def _run(self, start: Start) -> None:
        kills_before = oom_kills()
        handle = await RankHandle.start(self._spawner, start, on_message=self._heard, on_output=self._outlet.feed)
        self.handle = handle
        if self._paused:
            handle.pause()
        if self._signal is not None:
            # The word to stop came while it was being started.
            await self._deliver_signal(handle)
        ended = await handle.wait()
        await self._tell_end(ended, oom=ended.exit.signal == signal.SIGKILL and oom_kills() > kills_before)

    async def _deliver_signal(self, handle: RankHandle) -> None:
        if self._signal is None:
            return
        try:
            await handle.kill(self._signal, group=True)
        except SpawnError as error:
            # With its fork server gone it is gone too, or about to be.
            _LOG.info("rank %d was not signalled: %s", self.start.rank, error)

    # --- what it says

    def _heard(self, message: FromRank) -> None:
        start = self.start
        self.posture.said(message)
        match message:
            case Loaded(digest, versions):
                self.phase = "waiting"
                self._started(digest, versions)
                self._group.arrive(start.rank, START)
            case Entered():
                self.phase = "running"
            case Report():
                self._reported(message)
            case Uploading(name, index):
                self.uploading.add(name)
                self._saves.add(index)
                if len(self._saves) > SAVES_REMEMBERED_MAX_COUNT:
                    self._saves.discard(min(self._saves))
            case Asked():
                self._begins_from = None
            case Collect():
                self._group.arrive(start.rank, message)
            case Inquire():
                self._inquiry(start.rank, message)
            case Returned():
                self.phase = "returned"
                self._group.leave(start.rank, "has returned")
                self._returned(message)
            case Failed():
                self.phase = "failed"
                self._group.leave(start.rank, "has failed")
                self._failed(message)
            case Hello() | Imported() | Paused():
                pass

    def _started(self, digest: str | None, versions: dict[str, str]) -> None:
        self._say(
            RankStarted(
                **self._about(time.monotonic()),
                pid=self.pid or 0,
                next_port=self._order.next_port,
                digest=digest,
                versions=versions,
            )
        )

    def _reported(self, report: Report) -> None:
        self.index, self.step = report.index, report.step
        # A checkpoint's score is among the metrics reported with it, whichever rank that was.
        metrics = report.metrics if self._order.metrics or report.checkpoint is not None else None
        if self.uploading and (report.checkpoint is not None or report.upload_error is not None):
            self.uploading.discard(report.checkpoint or "")
        self._say(
            Reported(
                **self._about(report.clock_s),
                index=report.index,
                step=report.step,
                metrics=metrics,
                checkpoint=report.checkpoint,
                named=report.named,
                unread=self._was_unread(),
                upload_error=report.upload_error,
                passing=report.index in self._saves,
                validation=report.validation,
                cursor=report.cursor,
                spent_s=report.spent_s,
            )
        )

    def _was_unread(self) -> bool:
        """Whether the rank was given a checkpoint and has gone on without it; said once."""
        unread, self._begins_from = self._begins_from is not None, None
        return unread

    def _returned(self, returned: Returned) -> None:
        if returned.blob is None:
            self._say_returned(returned, None)
        else:
            self._uploads.append(asyncio.create_task(self._return_blob(returned, returned.blob), name="value"))

    async def _return_blob(self, returned: Returned, blob: bytes) -> None:
        try:
            digest = await self._blobs.put(blob, timeout_s=VALUE_PUT_TIMEOUT_S)
        except (BrokerError, ValueError) as error:
            self._fail("user", "ReturnValueNotKept", f"the return value could not be stored: {error}")
        else:
            self._say_returned(returned, digest)

    def _say_returned(self, returned: Returned, digest: str | None) -> None:
        self._say(
            RankReturned(
                **self._about(returned.clock_s),
                reports=returned.reports,
                value=returned.value,
                blob=digest,
                unread=self._was_unread(),
            )
        )

    def _failed(self, failed: Failed) -> None:
        error = failed.error
        if failed.full is not None:
            # Said at once; the whole text follows it, and its digest is known already.
            error = msgspec.structs.replace(error, blob=blob_digest(failed.full))
            self._uploads.append(asyncio.create_task(self._keep_error(failed.full), name="error"))
        self._say(RankFailed(**self._about(failed.clock_s), error=error))

    async def _keep_error(self, text: bytes) -> None:
        try:
            await self._blobs.put(text, timeout_s=VALUE_PUT_TIMEOUT_S)
        except BrokerError as error:
            _LOG.warning("rank %d: the whole text of its error is not kept: %s", self.start.rank, error)

    async def _tell_end(self, ended: RankEnd, *, oom: bool) -> None:
        for upload in self._uploads:
            if upload.get_name() == "value":
                # Its return comes first, since an exit without one is a failure.
                await asyncio.wait([upload])
        if ended.link_error is not None:
            self._fail("user", "LinkError", str(ended.link_error))
        self.phase = "exited"
        self._say_exit(ended, oom=oom)

    def _say_exit(self, ended: RankEnd, *, oom: bool) -> None:
        self._say(
            RankExited(
                **self._about(time.monotonic()),
                exit_code=ended.exit.code,
                signal=ended.exit.signal,
                peak_memory_bytes=ended.exit.peak_memory_bytes,
                last_lines=self._outlet.last_lines(),
                where=self._outlet.crashed_at(self.start.working_dir) if ended.exit.signal is not None else None,
                asked=self._ending.accounts_for(ended),
                returned=isinstance(ended.result, Returned),
                oom=oom,
            )
        )

    def _fail(self, kind: FailureKind, name: str, message: str) -> None:
        self.phase = "failed"
        error = ErrorInfo(type=name, message=message, kind=kind)
        self._say(RankFailed(**self._about(time.monotonic()), error=error))

    def _about(self, clock_s: float) -> _AboutRank:
        start = self.start
        return {**about(start.attempt, clock_s), "rank": start.rank, "life": start.life}

    def _say(self, fact: AnyFact) -> None:
        try:
            self._say_fact(fact)
        except FactTooLargeError as error:
            if not self._refused:
                self._refused = True
                self._fail("user", "FactTooLargeError", str(error))
