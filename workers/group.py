"""The ranks of a run on one node: started for an attempt, ended, and what they need of each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Final

from runfold.events.assignment import Assignment, Work
from runfold.events.base import Json
from runfold.events.beats import RankBeat
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.connection import Connection
from runfold.events.transitions import RankLaid
from runfold.workers.config import missing_names
from runfold.workers.facts import Facts
from runfold.workers.inventory import Inventory
from runfold.workers.life import RankLife
from runfold.workers.link import Collected, Go, Inquire, Noticed, Refused, Start, Wish
from runfold.workers.meeting import Meeting
from runfold.workers.outlet import Outlet
from runfold.workers.output import OutputCut
from runfold.workers.pipe import RunnerSpec
from runfold.workers.plan import Held
from runfold.workers.ports import HeldPort
from runfold.workers.prepare import Order
from runfold.workers.spawner import Spawner
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
        self._spawner = spawner
        self._blobs = blobs
        self._connection = connection
        self._facts = facts
        self._port = HeldPort(spec.addr)
        self._on_change = on_change
        self._lives: dict[int, RankLife] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._meeting: Meeting | None = None
        self._paused = False
        self._usage = Usage()
        self._inventory = Inventory(connection, spec.run)
        self._ready: list[RankLife] = []
        self._work: tuple[int, Work | None] = (0, None)
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
        return self._meeting.attempt if self._meeting is not None else 0

    @property
    def port(self) -> int:
        """The port held for the rendezvous of the attempt to come."""
        return self._port.number

    def start(self, assignment: Assignment, attempt: int, laid: RankLaid) -> None:
        """Start a rank of an attempt."""
        if assignment.job is None:
            _LOG.error("%s: the assignment to train names no work; nothing is started", self._spec.run)
            return
        meeting = self._meeting_of(assignment)
        rank = laid.rank
        self._retire(rank)
        self.newest[rank] = (attempt, laid.life)
        life = RankLife(
            self._order(assignment, assignment.job, laid),
            spawner=self._spawner,
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
        self._end_meeting()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)
        self._port.close()

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
        task.add_done_callback(self._closing.discard)

    # --- what an attempt needs

    def _meeting_of(self, assignment: Assignment) -> Meeting:
        if self._meeting is None or assignment.attempt != self._meeting.attempt:
            self._end_meeting()
            held, attempt = self._port, assignment.attempt
            # What is left to say of one attempt is no answer to the ranks of the next.
            deliver, failed = partial(self._deliver, attempt), partial(self._meeting_failed, attempt)
            self._meeting = Meeting(self._spec, assignment, held, deliver, failed)
            if self._meeting.needs_port:
                # Offered to the next attempt while this one uses the port held so far.
                self._port = HeldPort(self._spec.addr)
        return self._meeting

    def _end_meeting(self) -> None:
        if self._meeting is not None:
            self._close_later(self._meeting.close())
            self._meeting = None

    def _inquire(self, rank: int, inquiry: Inquire) -> None:
        """Answer which checkpoints there are, once the status says that what the rank asked for is dealt with."""
        self._close_later(self._list(rank, inquiry))

    async def _list(self, rank: int, inquiry: Inquire) -> None:
        life = self._lives.get(rank)
        if life is not None:
            answer = await self._inventory.listed(inquiry, life.start.attempt, lambda: life.over)
            life.send(answer)

    def _meeting_failed(self, attempt: int, reason: str) -> None:
        for life in self._lives.values():
            if life.start.attempt == attempt:
                life.cannot_meet(reason)

    def _deliver(self, attempt: int, rank: int, answer: Collected | Refused) -> None:
        life = self._lives.get(rank)
        if life is None or life.start.attempt != attempt:
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
            self._work = (assignment.attempt, assignment.job)
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
        attempt, work = self._work
        if work is None or work.waits:
            return
        ready, self._ready = self._ready, []
        for life in ready:
            if life.start.attempt == attempt:
                life.go(Go(checkpoint=work.checkpoint, first_index=work.first_index))
                if self._wish is not None:
                    life.send(Wish(self._wish))
                if self._noticed.nodes:
                    life.send(self._noticed)
            elif life.start.attempt > attempt:
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
        start = self._start_of(assignment, job, laid)
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
            config_blob=job.config_blob,
            obstacle=obstacle,
            metrics=laid.rank == 0 or job.metrics_ranks == "all",
            next_port=self._port.number,
            storage=partial(self._storages.of, job),
            callbacks=job.hooks.callbacks if job.hooks.in_ranks else (),
            datasets=job.datasets,
        )

    def _start_of(self, assignment: Assignment, job: Work, laid: RankLaid) -> Start:
        local = sum(one.place == laid.place for one in assignment.layout)
        world = len(assignment.layout)
        given = {
            "RUNFOLD_RUN": self._spec.run,
            "RUNFOLD_ATTEMPT": assignment.attempt,
            "RUNFOLD_RANK": laid.rank,
            "RUNFOLD_WORLD_SIZE": world,
            "RUNFOLD_LOCAL_RANK": laid.local_rank,
            "RUNFOLD_LOCAL_WORLD_SIZE": local,
            "RUNFOLD_NODE_RANK": laid.node_rank,
            "RUNFOLD_NODE": self._spec.node,
        }
        return Start(
            run=self._spec.run,
            name=job.name,
            attempt=assignment.attempt,
            rank=laid.rank,
            life=laid.life,
            world_size=world,
            local_rank=laid.local_rank,
            local_world_size=local,
            node_rank=laid.node_rank,
            entrypoint=job.entrypoint,
            config=job.config,
            env={**self._spec.env, **job.env, **{name: str(value) for name, value in given.items()}},
            working_dir=str(Path(self._spec.base_dir) / (job.working_dir or ".")),
            collective_timeout_s=job.timeouts.collective_timeout_s,
            node=self._spec.node,
            checkpointing=job.checkpointing,
            validates=job.validation is not None,
            arguments=_own(job.arguments, laid.rank),
            backend=job.backend,
            addr=assignment.rendezvous.addr if assignment.rendezvous is not None else self._spec.addr,
            own_addr=self._spec.addr,
            resources=assignment.resources,
        )


def _own(arguments: dict[str, Json], rank: int) -> dict[str, Json]:
    """Return this rank's share of what a gate gave: a value each; who got none has none."""
    return {name: values[rank] for name, values in arguments.items() if isinstance(values, list) and rank < len(values)}
