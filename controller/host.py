"""One process hosts many runs: a task each, served in turn, none harmed by another's error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, assert_never

from runfold.controller.links import as_named
from runfold.controller.loop import Loop
from runfold.controller.owners import Owners
from runfold.controller.patience import GaveUp, Patience
from runfold.controller.ports import Ports
from runfold.controller.safe import shown
from runfold.controller.seed import Collected, Dropped, Ended, Ending, Identity, NewRun, Quarantined, Stopped, Unwritten
from runfold.controller.territory import local_path, storage_key
from runfold.events.job import Job
from runfold.events.subjects import Subjects

TAKEOVERS_AT_ONCE_MAX: Final = 8
"""How many logs are read back at the same time when the controller starts."""

STOP_TIMEOUT_S: Final = 5.0
"""How long the loops may take to end their turn when the controller stops."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of this controller share. `at` gives the time of day (RFC 3339, UTC), `monotonic` seconds.

    `real_path` says where a path of this machine leads.
    """

    ports: Ports
    me: Identity
    subjects: Subjects
    monotonic: Callable[[], float]
    at: Callable[[], str]
    real_path: Callable[[str], Awaitable[str]] = as_named


@dataclass(slots=True)
class Hosted:
    """A run hosted here: its loop, and how it ended once it has."""

    loop: Loop
    task: asyncio.Task[None] | None = None
    ending: Ending | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def begun(self) -> bool:
        """Wait until the run stands in the log, or its loop has ended; whether it stands."""
        waits = [asyncio.ensure_future(self.loop.standing.wait()), asyncio.ensure_future(self.over.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.loop.standing.is_set()


class Host:
    """The runs of one controller. `serve` owns their tasks."""

    def __init__(self, setting: Setting) -> None:
        self.owners = Owners(setting.ports.owners, setting.me.controller)
        self.ready = asyncio.Event()
        self._setting = setting
        self._runs: dict[str, Hosted] = {}
        self._owner: asyncio.TaskGroup | None = None
        self.unsure = asyncio.Event()
        """Set when it must be looked who owns which run."""
        self._patience = Patience(f"controller {setting.me.controller}")
        self._reading_back = asyncio.Semaphore(TAKEOVERS_AT_ONCE_MAX)
        self._coming: set[str] = set()
        self._tried: dict[str, int] = {}
        self._claimed: set[str] = set()

    def find(self, run: str) -> Hosted | None:
        """Return a run hosted here, quarantined ones among them."""
        return self._runs.get(run)

    async def serve(self, stop: asyncio.Event) -> None:
        """Take over the runs of this controller, then host runs until `stop`; end every loop in order."""
        async with asyncio.TaskGroup() as owner:
            self._owner = owner
            stopping = owner.create_task(self._stop_when(stop), name="stop the runs")
            try:
                for run, holder in (await self._patience.ask(self.owners.holders)).items():
                    if holder == self.owners.controller:
                        self.resume(run)
                self.ready.set()
            except GaveUp:
                _log.warning("stopped before the broker said which runs are this controller's")
            await stopping

    def start(self, run: str, job: NewRun | None) -> Hosted:
        """Host a run from its job, or from its log; the one hosted already when there is one."""
        present = self._runs.get(run)
        if present is not None:
            return present
        if self._owner is None:
            raise RuntimeError("the host serves no runs yet")
        setting = self._setting
        loop = Loop(
            run,
            job,
            setting.ports.run(run),
            setting.me,
            subjects=setting.subjects,
            monotonic=setting.monotonic,
            at=setting.at,
        )
        hosted = self._runs[run] = Hosted(loop)
        if self._patience.over:
            loop.stop()
        hosted.task = self._owner.create_task(self._live(run, hosted), name=f"run {run}")
        return hosted

    def forget(self, run: str) -> None:
        """Host a run no more: its loop has ended, and it may begin anew."""
        hosted = self._runs.get(run)
        if hosted is not None and hosted.over.is_set():
            del self._runs[run]

    @contextmanager
    def claiming(self, run: str) -> Iterator[None]:
        """Keep a run from being taken over here while its job makes it: its key stands before its first entry does."""
        self._claimed.add(run)
        try:
            yield
        finally:
            self._claimed.discard(run)

    def resume(self, run: str) -> None:
        """Take a run over that is this controller's by its key, and is not hosted."""
        self._read_back(run, None)

    def inherit(self, run: str, holder: str) -> None:
        """Take over the run of a controller that is gone, if nobody else is quicker."""
        self._read_back(run, holder)

    def drop(self, run: str, reason: str) -> None:
        """Let go of a run that is not this controller's any more by its key."""
        hosted = self._runs.get(run)
        if hosted is None:
            return
        if hosted.over.is_set():
            self.forget(run)
        elif hosted.ending is None:
            hosted.loop.stop(Dropped(reason))

    def standing(self) -> set[str]:
        """Return the runs that are hosted here and stand in the log."""
        return {run for run, hosted in self._runs.items() if hosted.ending is None and hosted.loop.standing.is_set()}

    def show_again(self) -> None:
        """Have every run that is hosted here show its status once more."""
        for hosted in self._runs.values():
            hosted.loop.show_again()

    async def unsettled(self) -> frozenset[str]:
        """Return the runs, hosted here or not, whose status tells of no end."""
        return await self._setting.ports.unsettled()

    async def recheck(self) -> None:
        """Take up again the quarantined runs whose log was restored since."""
        damaged = [run for run, one in self._runs.items() if one.over.is_set() and isinstance(one.ending, Quarantined)]
        for run in damaged:
            generation = await self._setting.ports.generation(run)
            hosted = self._runs.get(run)
            if hosted is not None and generation > self._tried.get(run, hosted.loop.generation):
                self._tried[run] = generation
                _log.warning("run %s: its log was restored as generation %d; it is taken up again", run, generation)
                self.forget(run)
                self.resume(run)

    def _read_back(self, run: str, holder: str | None) -> None:
        known = run in self._runs or run in self._coming or run in self._claimed
        if self._owner is None or known or self._patience.over:
            return
        self._coming.add(run)
        self._owner.create_task(self._take_over(run, holder), name=f"take over {run}")

    async def _take_over(self, run: str, holder: str | None) -> None:
        """Take a run over; `holder`: from whom, by changing its key."""
        try:
            async with self._reading_back:
                if holder is not None:
                    if not await self._patience.ask(lambda: self.owners.inherit(run, holder)):
                        return
                    _log.warning("run %s: its controller %s is gone; taken over", run, shown(holder))
                await self.start(run, None).begun()
        except GaveUp:
            _log.warning("run %s: stopped before it was taken over", run)
        finally:
            self._coming.discard(run)

    async def _live(self, run: str, hosted: Hosted) -> None:
        try:
            hosted.ending = await hosted.loop.run()
            await self._after(run, hosted.ending)
        except GaveUp:
            _log.warning("run %s: its OWNERS key stays until the next start", run)
        finally:
            # Also of a loop that was cut short: who waits for it to begin must not wait for ever.
            hosted.over.set()
            if not isinstance(hosted.ending, Quarantined):
                self.forget(run)

    async def _after(self, run: str, ending: Ending) -> None:
        match ending:
            case Ended(job=job):
                await self._patience.ask(lambda: self.let_go(run, job))
                _log.info("run %s is over", run)
            case Dropped(reason=reason):
                _log.error("run %s: %s; it is let go, nothing was decided here since", run, shown(reason))
                # It may be ours all the same: its former controller wrote once more, or its key is gone.
                if await self._patience.ask(lambda: self.owners.claim(run)) == self.owners.controller:
                    self.unsure.set()
            case Quarantined(reason=reason):
                _log.error("run %s stays quarantined until its log is restored: %s", run, shown(reason))
            case Stopped():
                _log.info("run %s goes on; the next controller takes it over", run)
            case Unwritten():
                _log.info("run %s is claimed but not written; its job comes again", run)
                await self._patience.ask(lambda: self.owners.release(run))
            case Collected():
                _log.info("run %s is over and was given back; its archive has it", run)
                await self._patience.ask(lambda: self.owners.release(run))
            case _:
                assert_never(ending)

    async def let_go(self, run: str, job: Job) -> None:
        """Free the keys of a run that is over, or never came to be: its storage first, which it may not outlive."""
        key = await self.key_of(job)
        if key is not None:
            await self.owners.vacate(key, run)
        await self.owners.release(run)

    async def key_of(self, job: Job) -> str | None:
        """Return the key of a job's storage, by where it really is; None for one that is the run's alone."""
        path = local_path(job)
        return storage_key(job, None if path is None else await self._setting.real_path(path))

    async def _stop_when(self, stop: asyncio.Event) -> None:
        """Wait for `stop`, then end the loops after their turn, by force when they take too long."""
        await stop.wait()
        self._patience.over = True
        tasks = [hosted.task for hosted in self._runs.values() if hosted.task is not None]
        for hosted in self._runs.values():
            hosted.loop.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
            for task in late:
                _log.warning("%s did not end its turn within %g s and was cut short", task.get_name(), STOP_TIMEOUT_S)
                task.cancel()
