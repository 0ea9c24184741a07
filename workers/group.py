"""The ranks of a run on one node: started for an attempt, ended, and what they need of each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from runfold.events.assignment import Assignment, Work
from runfold.events.beats import RankBeat
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.connection import Connection
from runfold.events.transitions import RankLaid
from runfold.workers.brooder import Brooder
from runfold.workers.config import missing_names
from runfold.workers.facts import Facts
from runfold.workers.inventory import Inventory
from runfold.workers.life import RankLife
from runfold.workers.link import Collected, Inquire, Noticed, Refused, Wish
from runfold.workers.logs import log_bug
from runfold.workers.meeting import Meetings
from runfold.workers.outlet import Outlet
from runfold.workers.output import OutputCut
from runfold.workers.pipe import RunnerSpec
from runfold.workers.plan import Held
from runfold.workers.prepare import Order
from runfold.workers.scope import Scope
from runfold.workers.spawner import Spawner
from runfold.workers.starting import beginning, start_of
from runfold.workers.storages import Storages
from runfold.workers.usage import Usage

BLOB_ENTRY: Final = "blob:"
_LOG: Final = logging.getLogger("runfold.workers")


class RankGroup:
    """What lives here. `held` is for the planner; `newest` keeps what was started last of each rank."""

    def __init__(
        self,
        spec: RunnerSpec,
        spawner: Spawner,
        blobs: Blobs,
        connection: Connection,
        facts: Facts,
        storages: Storages,
        on_change: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._storages = storages
        self._brooder = Brooder(spawner, spec.run, spec.node)
        self._blobs = blobs
        self._connection = connection
        self._facts = facts
        self._on_change = on_change
        self._lives: dict[int, RankLife] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._meetings = Meetings(spec, self._deliver, self._meeting_failed, self._close_later)
        self._paused = False
        self._usage = Usage()
        self._inventory = Inventory(connection, spec.run)
        self._ready: list[RankLife] = []
        self._told: Assignment | None = None
        self._wish: str | None = None
        self._noticed = Noticed()
        self._saves: tuple[int, set[int]] = (0, set())
        self.newest: dict[int, tuple[int, int]] = {}

    @property
    def held(self) -> list[Held]:
        """The processes here that live, or are being started."""
        return [life.held for life in self._lives.values() if not life.over]

    @property
    def crashed(self) -> BaseException | None:
        """A bug of ours in one of the lives here, which the runner must not outlive."""
        return next((life.crashed for life in self._lives.values() if life.crashed is not None), None)

    @property
    def attempt(self) -> int:
        """The attempt of the ranks started last; 0 before any."""
        return self._meetings.attempt

    @property
    def port(self) -> int:
        """The port held for the rendezvous of the attempt to come."""
        return self._meetings.port

    def start(self, assignment: Assignment, attempt: int, laid: RankLaid) -> None:
        """Start a rank of an attempt."""
        if assignment.job is None:
            _LOG.error("%s: the assignment to train names no work; nothing is started", self._spec.run)
            return
        meeting = self._meetings.of(assignment, laid.rank)
        rank = laid.rank
        self._retire(rank)
        self.newest[rank] = (attempt, laid.life)
        life = RankLife(
            self._order(assignment, assignment.job, laid),
            spawner=self._brooder,
            blobs=self._blobs,
            outlet=Outlet(self._connection, OutputCut(self._spec.run, attempt, rank, self._spec.node)),
            group=meeting.collectives,
            say=self._facts.say,
            on_change=self._on_change,
            inquired=self._inquire,
            saves=self._saves_of(attempt),
        )
        self._lives[rank] = life
        life.pause(self._paused)
        life.begin()

    @property
    def lives(self) -> list[RankLife]:
        """The ranks here that have not ended."""
        return [life for life in self._lives.values() if not life.over]

    def end(self, rank: int, *, kill: bool, now: float) -> None:
        """Ask a rank to end, or make it."""
        if (life := self._lives.get(rank)) is not None:
            life.end(kill=kill, now=now)
            if life.pid is None:
                self._brooder.hurry()

    def note(self, text: str) -> None:
        """Let the ranks here have a line of ours among what they print."""
        for life in self.lives:
            life.note(text)

    def pause(self, paused: bool) -> None:
        """Let all reports wait, or go on."""
        self._paused = paused
        for life in self._lives.values():
            life.pause(paused)

    def beats(self, now: float) -> tuple[RankBeat, ...]:
        """Return every rank at a glance."""
        self._usage.forget({life.pid for life in self._lives.values() if life.pid is not None})
        return tuple(self._beat_of(life, now) for life in self._lives.values())

    async def close(self) -> None:
        """Wait, with bounded patience, until the output of all ranks is with the broker; end what is open."""
        for rank in list(self._lives):
            self._retire(rank)
        self._meetings.end()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)
        await self._brooder.close()
        self._meetings.close()

    def _beat_of(self, life: RankLife, now: float) -> RankBeat:
        memory_bytes, cpu = self._usage.of(life.pid, now) if life.pid is not None and not life.over else (None, None)
        return RankBeat(
            rank=life.start.rank,
            phase=life.phase,
            index=life.index,
            step=life.step,
            memory_bytes=memory_bytes,
            cpu=cpu,
            # An upload within a report is no standstill either; it has limits of its own.
            paused=life.posture.paused or bool(life.uploading),
        )

    def _retire(self, rank: int) -> None:
        if (life := self._lives.pop(rank, None)) is not None:
            self._close_later(life.drained())

    def _close_later(self, closing: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        log_bug(task, f"{self._spec.run}: something of its ranks")

    # --- what an attempt needs

    def _inquire(self, rank: int, inquiry: Inquire) -> None:
        """Answer which checkpoints there are, once the status says that what the rank asked for is dealt with."""
        self._close_later(self._list(rank, inquiry))

    async def _list(self, rank: int, inquiry: Inquire) -> None:
        life = self._lives.get(rank)
        if life is not None:
            answer = await self._inventory.listed(inquiry, life.start.attempt, lambda: life.over)
            life.send(answer)

    def _meeting_failed(self, scope: Scope, reason: str) -> None:
        for life in self._lives.values():
            if _meets_in(scope, life):
                life.cannot_meet(reason)

    def _deliver(self, scope: Scope, rank: int, answer: Collected | Refused) -> None:
        life = self._lives.get(rank)
        if life is None or not _meets_in(scope, life):
            return
        if answer.number > 0:
            life.send(answer)
        elif isinstance(answer, Collected):
            self._ready.append(life)
            self._begin()

    # --- where an attempt begins

    def hear(self, assignment: Assignment) -> None:
        """Take what an assignment says of where the ranks begin, and whether they are asked for a checkpoint."""
        if assignment.job is not None:
            self._told = assignment
            self._begin()
            self._tell_taken(assignment.job)
            if assignment.job.wanted != self._wish:
                self._wish = assignment.job.wanted
                for life in self._lives.values():
                    life.send(Wish(self._wish))

    def _tell_taken(self, job: Work) -> None:
        """Tell the ranks which nodes of the group will be taken back."""
        taken = job.taken
        nodes = {node: list(ranks) for node, ranks in taken.nodes.items()} if taken is not None else {}
        noticed = Noticed(nodes, taken.deadline_ms if taken is not None else None)
        if noticed != self._noticed:
            self._noticed = noticed
            for life in self._lives.values():
                life.send(noticed)

    def _saves_of(self, attempt: int) -> set[int]:
        if self._saves[0] != attempt:
            self._saves = (attempt, set())
        return self._saves[1]

    def _begin(self) -> None:
        """Let ranks that are ready enter user code, once it is certain where they begin."""
        told = self._told
        if told is None or told.job is None or told.job.waits:
            return
        ready, self._ready = self._ready, []
        for life in ready:
            if life.start.attempt == told.attempt:
                life.go(beginning(told, told.job, life.start.rank))
                if self._wish is not None:
                    life.send(Wish(self._wish))
                if self._noticed.nodes:
                    life.send(self._noticed)
            elif life.start.attempt > told.attempt:
                self._ready.append(life)

    def unfinished(self) -> list[tuple[int, set[str]]]:
        """Return, once each, what ranks that have ended left half uploaded: their attempt and the directories."""
        left: list[tuple[int, set[str]]] = []
        for life in self._lives.values():
            if life.over and life.uploading:
                left.append((life.start.attempt, life.uploading))
                life.uploading = set()
        return left

    @property
    def attempts(self) -> set[int]:
        """The attempts of the ranks that live here."""
        return {one.attempt for one in self.held}

    def _order(self, assignment: Assignment, job: Work, laid: RankLaid) -> Order:
        start = start_of(self._spec, assignment, job, laid)
        is_blob = job.entrypoint.startswith(BLOB_ENTRY)
        missing = missing_names(name for name in job.secret_env if name not in self._spec.env)
        obstacle = (
            f"secret_env names {', '.join(missing)}, not set where the supervisor of pool {self._spec.pool} runs: "
            "set it there and start the supervisor again, or take the name out of the job"
            if missing
            else None
        )
        return Order(
            start=start,
            blob=job.entrypoint.removeprefix(BLOB_ENTRY) if is_blob else None,
            obstacle=obstacle,
            metrics=laid.rank == 0 or job.metrics_ranks == "all",
            next_port=self._meetings.port,
            storage=partial(self._storages.of, job),
            callbacks=job.hooks.callbacks if job.hooks.in_ranks else (),
            datasets=job.datasets,
        )


def _meets_in(scope: Scope, life: RankLife) -> bool:
    """Whether a rank here is of those who meet: what is left to say of others is no answer to it."""
    start = life.start
    return (start.attempt, start.life) == (scope.attempt, scope.life) and start.rank in scope.ranks
