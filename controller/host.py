"""One process hosts many runs: a task each, served in turn, none harmed by another's error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, assert_never

from runfold.controller.loop import Loop
from runfold.controller.owners import Owners
from runfold.controller.patience import GaveUp, Patience
from runfold.controller.ports import Ports
from runfold.controller.safe import shown
from runfold.controller.seed import Dropped, Ended, Ending, Identity, NewRun, Quarantined, Stopped, Unwritten
from runfold.events.subjects import Subjects

TAKEOVERS_AT_ONCE_MAX: Final = 8
"""How many logs are read back at the same time when the controller starts."""

STOP_TIMEOUT_S: Final = 5.0
"""How long the loops may take to end their turn when the controller stops."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of this controller share. `at` gives the time of day (RFC 3339, UTC), `monotonic` seconds."""

    ports: Ports
    me: Identity
    subjects: Subjects
    monotonic: Callable[[], float]
    at: Callable[[], str]


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
        self._patience = Patience(f"controller {setting.me.controller}")
        self._reading_back = asyncio.Semaphore(TAKEOVERS_AT_ONCE_MAX)

    def find(self, run: str) -> Hosted | None:
        """Return a run hosted here, quarantined ones among them."""
        return self._runs.get(run)

    async def serve(self, stop: asyncio.Event) -> None:
        """Take over the runs of this controller, then host runs until `stop`; end every loop in order."""
        async with asyncio.TaskGroup() as owner:
            self._owner = owner
            stopping = owner.create_task(self._stop_when(stop), name="stop the runs")
            try:
                for run in await self._patience.ask(self.owners.mine):
                    owner.create_task(self._take_over(run), name=f"take over {run}")
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

    async def _take_over(self, run: str) -> None:
        async with self._reading_back:
            await self.start(run, None).begun()

    async def _live(self, run: str, hosted: Hosted) -> None:
        ending = hosted.ending = await hosted.loop.run()
        try:
            await self._after(run, ending)
        except GaveUp:
            _log.warning("run %s: its OWNERS key stays until the next start", run)
        finally:
            hosted.over.set()
            if not isinstance(ending, Quarantined):
                self.forget(run)

    async def _after(self, run: str, ending: Ending) -> None:
        match ending:
            case Ended():
                await self._patience.ask(lambda: self.owners.release(run))
                _log.info("run %s is over", run)
            case Dropped(sequence=sequence):
                _log.error(
                    "run %s: another controller's entry stands at sequence %d of the log, where ours belonged: "
                    "the run is that one's now; nothing was decided here since",
                    run,
                    sequence,
                )
            case Quarantined(reason=reason):
                _log.error("run %s stays quarantined until the controller starts again: %s", run, shown(reason))
            case Stopped():
                _log.info("run %s goes on without a controller until the next start", run)
            case Unwritten():
                _log.info("run %s is claimed but not written; its job comes again", run)
            case _:
                assert_never(ending)

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
