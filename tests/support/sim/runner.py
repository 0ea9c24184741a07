"""Runners: deciding by the real `plan`, speaking by the real source; their ranks are simulated."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar, cast

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.beats import RankBeat
from runfold.events.config import Timeouts
from runfold.events.facts import AnyFact, Fact, PlaceOffer, RunnerReady
from runfold.events.transitions import RankLaid
from runfold.workers.group import RankGroup
from runfold.workers.pipe import EXIT_TAKEN, RunnerSpec, StopNow
from runfold.workers.places import Place
from runfold.workers.plan import ABANDONED_GRACE_S, EndRank, Held, Leave, Ordered, StartRank, plan
from runfold.workers.pools.local import Demand
from runfold.workers.pulse import beat
from runfold.workers.runner import EXIT_DONE, LEAVE_TIMEOUT_S, REPORT_FLUSH_S
from runfold.workers.scope import Scope, given_to, scope_of
from support.sim.connection import SimConnection, SimFacts, watch_assignments
from support.sim.process import Process
from support.sim.rank import SimRank
from support.sim.truth import Harm
from support.sim.world import POOL, World

F = TypeVar("F", bound=Fact)
BOOT_S: Final = (0.02, 0.6)
"""How long a runner takes from its fork to its first word."""
PIPE_S: Final = (0.0, 0.01)
SIGKILL: Final = 9


class SimRunner:
    """One runner, from its fork to its end. `code` and `signal` say how it ended, `ended` that it has."""

    def __init__(self, world: World, demand: Demand, place: PlaceOffer) -> None:
        self.run, self.node = demand.run, place.node
        self.process = world.process(place.node)
        self.ended = asyncio.Event()
        self.code: int | None = None
        self.signal: int | None = None
        self.holds_place = False
        self.ranks: dict[int, SimRank] = {}
        self.attempt = demand.attempt
        self._world = world
        self._assignment: Assignment | None = None
        self._ordered: Ordered | None = None
        self._newest: dict[int, tuple[int, int]] = {}
        self._wake = asyncio.Event()
        self._supervisor: Process | None = None
        self._facts: SimFacts | None = None
        self.place = Place(
            run=demand.run,
            pool=POOL,
            node=place.node,
            source=place.node,
            attempt=demand.attempt,
            pid=world.boots,
            started=None,
            slots=place.slots,
            resources=demand.resources,
        )
        world.truth.runners.append(self)

    @property
    def pid(self) -> int:
        """Its process, for ever."""
        return self.place.pid

    @property
    def alive(self) -> bool:
        """Whether it lives."""
        return not self.ended.is_set()

    def start(self) -> None:
        """Begin."""
        self.process.spawn(self._live(), f"runner {self.run}")

    def attend(self, supervisor: Process) -> None:
        """Have a supervisor, or another one."""
        self._supervisor = supervisor

    def told(self, stop: StopNow) -> None:
        """Hear the supervisor's word."""
        wait_s = self._world.dice.uniform(*PIPE_S)
        asyncio.get_running_loop().call_later(wait_s, lambda: self._order(stop))

    def die(self, signal: int) -> None:
        """End by a signal, with all its ranks."""
        if self.alive:
            self._harmed()
            self._end(None, signal)

    def _harmed(self) -> None:
        self._world.truth.harm(Harm(self.run, "runner", self.attempt, self.node))

    # --- its life

    async def _live(self) -> None:
        world, dice = self._world, self._world.dice
        await asyncio.sleep(dice.uniform(*BOOT_S))
        if any(
            other.holds_place and other.run == self.run and other.node == self.node for other in world.truth.runners
        ):
            self._end(EXIT_TAKEN, None)
            return
        self.holds_place = True
        link = SimConnection(self.process, world.net, world.broker)
        self._facts = facts = SimFacts(
            link, world.truth, run=self.run, source=self.node, boot=self.process.boot, flush_s=REPORT_FLUSH_S
        )
        facts.start()
        self.say(RunnerReady, self.attempt, node=self.node, addr="127.0.0.1", port=4000)
        watch_assignments(self.process, world.net, world.broker, self._hear, self.run)
        self.process.spawn(self._listen(), "listen")
        spec = cast("RunnerSpec", self)
        self.process.spawn(beat(link.real(), spec, facts, cast("RankGroup", self)), "beat")
        await self._turns()
        for rank in list(self.ranks.values()):
            rank.end(kill=True)
        if facts.spool.incarnation is not None:
            await facts.settled(LEAVE_TIMEOUT_S)
        self._end(EXIT_DONE, None)

    def _end(self, code: int | None, signal: int | None) -> None:
        if self.ended.is_set():
            return
        self.code, self.signal = code, signal
        self.holds_place = False
        for rank in self.ranks.values():
            rank.vanish()
        self.ended.set()
        self.process.kill()

    async def _turns(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now = loop.time()
            todo = plan(self.node, self._assignment, self._ordered, self._held, self._newest, now)
            for step in todo.steps:
                match step:
                    case StartRank(attempt=attempt, laid=laid):
                        self._start(attempt, laid)
                    case EndRank(rank=rank, kill=kill):
                        self.ranks[rank].end(kill=kill)
                    case Leave():
                        return
            try:
                async with asyncio.timeout(None if todo.wake_at is None else max(0.0, todo.wake_at - now)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    @property
    def _held(self) -> list[Held]:
        return [rank.held for rank in self.ranks.values() if not rank.over]

    def _start(self, attempt: int, laid: RankLaid) -> None:
        self.attempt = attempt
        self._newest[laid.rank] = (attempt, laid.life)
        rank = SimRank(self._world, self, attempt, laid)
        self.ranks[laid.rank] = rank
        rank.begin()

    @property
    def source(self) -> str:
        """The name that it speaks under."""
        return self.node

    def beats(self, now: float) -> tuple[RankBeat, ...]:
        """Return every rank at a glance."""
        return tuple(rank.beat for rank in self.ranks.values())

    def hub(self, scope: Scope) -> str:
        """The node where the ranks of a scope meet: that of its first."""
        shown = self._assignment
        first = next((laid for laid in shown.layout if laid.rank == scope.first), None) if shown is not None else None
        return self.node if shown is None or first is None else shown.places[first.place].node

    def scope(self, rank: int) -> Scope:
        """Return whom a rank meets."""
        shown = self._assignment
        return scope_of(shown, rank) if shown is not None else Scope(attempt=0, first=0, size=1)

    def first(self, scope: Scope) -> int:
        """Return the number of the first report of who meets there."""
        given = given_to(self._assignment, scope) if self._assignment is not None else None
        return given.first if given is not None else 0

    def say(self, kind: type[F], attempt: int, **fields: object) -> None:
        """Say a fact of an attempt; the spool fills in incarnation and number."""
        known = {"source": self.node, "incarnation": 0, "number": 0, "attempt": attempt}
        wire = {"kind": kind.__struct_config__.tag, **known, "clock_s": self._world.now + self.process.skew_s}
        if self._facts is not None:
            self._facts.say(msgspec.convert({**wire, **fields}, AnyFact))

    def changed(self) -> None:
        """Look again at what is to be done."""
        self._wake.set()

    def _hear(self, shown: Assignment) -> None:
        self._assignment = shown
        if self._facts is not None:
            self._facts.hear(shown)
            if self._facts.superseded:
                self._order(StopNow(reason="a newer process speaks under this runner's name", grace_s=0.0))
        self._wake.set()

    async def _listen(self) -> None:
        """See whether there is a supervisor; without one, wait for an heir for as long as the job says."""
        loop = asyncio.get_running_loop()
        alone_s: float | None = None
        while True:
            await asyncio.sleep(0.2)
            if self._supervisor is not None and self._supervisor.alive:
                alone_s = None
            elif alone_s is None:
                alone_s = loop.time()
            elif loop.time() - alone_s >= self._timeouts.adopt_within_s:
                self._harmed()
                self._order(StopNow(reason="the supervisor is gone", grace_s=ABANDONED_GRACE_S))
                return

    @property
    def _timeouts(self) -> Timeouts:
        job = self._assignment.job if self._assignment is not None else None
        return job.timeouts if job is not None else Timeouts()

    def _order(self, stop: StopNow) -> None:
        grace_s = stop.grace_s if self._ordered is None else min(stop.grace_s, self._ordered.grace_s)
        self._ordered = Ordered(reason=stop.reason, grace_s=grace_s)
        self._wake.set()
