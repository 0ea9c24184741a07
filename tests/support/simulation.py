"""A whole run under a seed: the real controller and the real spools, in memory and in virtual time, in bad weather.

Messages are lost on their way to the broker, or their acknowledgement is; appends are not answered; the controller is
killed and started again; runners die; ranks raise. `simulate` returns what came of it, the same for the same seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.beats import Folded
from runfold.events.config import FailureConfig, ScalingConfig
from runfold.events.facts import (
    AnyFact,
    Placed,
    PlaceOffer,
    Queued,
    RankExited,
    RankFailed,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerLost,
    RunnerReady,
)
from runfold.events.failures import ErrorInfo
from runfold.events.job import Job, encode_job
from runfold.events.memory import FaultKind
from runfold.events.requests import AbortRun, Join
from runfold.events.status import Status
from runfold.replay.history import History
from runfold.replay.source import read_log
from runfold.workers.spool import Spool
from support.hosting import Hosted, assignment, status
from support.memory_ports import MemoryRun, MemoryWorld
from support.virtual import run_virtual
from support.waiting import until

RUN = "simulated"
NODE = "local"
TICK_S = 0.05
APPENDS_PLANNED_COUNT = 2000
END_WITHIN_S = 3000.0
FLUSH_S = 0.5


@dataclass(frozen=True)
class Weather:
    """How often what goes wrong; all drawn from the seed."""

    lost: float
    unheard: float
    append_fault: float
    rank_fails: float
    runner_dies: float
    kills_count: int
    aborts: bool
    inbox_lost: bool
    workers: int
    max_failures: int


@dataclass
class Outcome:
    """What came of a simulation."""

    weather: Weather
    history: History
    status: Status
    run: MemoryRun
    world: MemoryWorld
    reported: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def log(self) -> list[bytes]:
        """The log, byte for byte."""
        return self.run.log.log.messages


def weather_of(dice: random.Random) -> Weather:
    """Draw the weather: some seeds are calm, some are storms."""
    storm = dice.choice((0.0, 0.1, 0.4))
    return Weather(
        lost=storm * dice.random(),
        unheard=storm * dice.random(),
        append_fault=storm * dice.random(),
        rank_fails=dice.choice((0.0, 0.2, 0.6)),
        runner_dies=dice.choice((0.0, 0.0, 0.3)),
        kills_count=dice.choice((0, 0, 1, 3)),
        aborts=dice.random() < 0.15,
        inbox_lost=dice.random() < 0.15,
        workers=dice.randint(1, 4),
        max_failures=dice.randint(0, 3),
    )


class Source:
    """A source with a real spool, over a wire that loses messages and acknowledgements."""

    def __init__(self, run: MemoryRun, name: str, boot: str, dice: random.Random, weather: Weather) -> None:
        self.run, self.name, self.boot = run, name, boot
        self.dice, self.weather = dice, weather
        self.spool = Spool(RUN, name, flush_s=FLUSH_S)
        self.dead = False
        self._heard_count = 0

    @property
    def now(self) -> float:
        """The source's own clock."""
        return asyncio.get_running_loop().time()

    def say(self, fact: AnyFact) -> None:
        """Say something, when it can be said."""
        self.spool.add(fact, self.now)

    def seen(self) -> Assignment | None:
        """Return the assignment as this source sees it."""
        return assignment(self.run) if self.run.assignment.data is not None else None

    async def talk(self) -> None:
        """Join, publish, repeat, forget what is folded; until dead."""
        asked_s = -1.0
        while not self.dead:
            await asyncio.sleep(self.dice.uniform(0.2, 1.0) * TICK_S)
            shown = self.seen()
            if shown is None:
                continue
            given = next((g for g in shown.joined if g.source == self.name and g.boot == self.boot), None)
            if given is None:
                if self.now >= asked_s + 1.0:
                    asked_s = self.now
                    join = Join(id=self.boot, source=self.name, boot=self.boot)
                    self._wire("request.join", msgspec.json.encode(join))
                continue
            self.spool.join(given.incarnation, self.now)
            self._listen(shown)
            message = self.spool.message(self.now)
            if message is not None and self._wire(f"fact.{message.attempt}.{self.name}", message.data):
                self.spool.acked(message, self.now)

    async def settled(self) -> None:
        """Wait until the broker holds everything that was said."""
        await until(lambda: self.spool.settled or self.dead, END_WITHIN_S)

    def _listen(self, shown: Assignment) -> None:
        self.spool.folded(shown.folded.get(self.name, 0), self.now)
        said = self.run.happened.of("folded")
        if len(said) > self._heard_count:
            self._heard_count = len(said)
            if self.dice.random() >= self.weather.lost:
                folded = msgspec.json.decode(said[-1], type=Folded)
                self.spool.folded(folded.folded.get(self.name, 0), self.now)

    def _wire(self, subject: str, data: bytes) -> bool:
        """Publish; whether the acknowledgement was heard."""
        if self.dice.random() < self.weather.lost:
            return False
        self.run.inbox.publish(subject, data)
        return self.dice.random() >= self.weather.unheard


class Runner:
    """One runner and its ranks, for one placement."""

    def __init__(self, source: Source, attempt: int, outcome: dict[tuple[int, int], int]) -> None:
        self.source = source
        self.gone = asyncio.Event()
        self.attempt = attempt
        self._outcome = outcome
        self._ranks: dict[int, asyncio.Task[None]] = {}
        self._done: set[int] = set()
        self._trained = 0

    async def live(self, owner: asyncio.TaskGroup) -> None:
        """Do as the assignment says until it says stop."""
        dice, source = self.source.dice, self.source
        talking = owner.create_task(source.talk())
        await asyncio.sleep(dice.uniform(0.01, 0.5))
        source.say(self._fact(RunnerReady, self.attempt, node=NODE, addr="127.0.0.1", port=4000))
        dies_s = source.now + dice.uniform(0, 20) if dice.random() < source.weather.runner_dies else None
        while True:
            await asyncio.sleep(TICK_S)
            shown = source.seen()
            if dies_s is not None and source.now >= dies_s:
                self._stop(said=False)
                break
            if shown is None or source.spool.incarnation is None:
                continue
            if shown.want in ("stop", "gone"):
                self._stop(said=True)
                await source.settled()
                break
            if shown.want == "train" and shown.attempt > self._trained:
                self._stop(said=True)
                self._train(owner, shown)
        source.dead = True
        talking.cancel()
        self.gone.set()

    def _train(self, owner: asyncio.TaskGroup, shown: Assignment) -> None:
        self.attempt = self._trained = shown.attempt
        self._done = set()
        self._ranks = {laid.rank: owner.create_task(self._rank(shown.attempt, laid.rank)) for laid in shown.layout}

    def _stop(self, *, said: bool) -> None:
        for rank, task in self._ranks.items():
            ended = rank in self._done
            task.cancel()
            if said:
                code = 0 if ended else None
                signal = None if ended else 15
                self.source.say(
                    self._fact(
                        RankExited,
                        self.attempt,
                        rank=rank,
                        life=1,
                        exit_code=code,
                        signal=signal,
                        asked=not ended,
                        returned=ended,
                    )
                )
        self._ranks = {}

    async def _rank(self, attempt: int, rank: int) -> None:
        dice, source = self.source.dice, self.source
        await asyncio.sleep(dice.uniform(0.01, 0.5))
        source.say(self._fact(RankStarted, attempt, rank=rank, life=1, pid=100 + rank, next_port=4000 + attempt))
        reports = dice.randint(0, 12)
        fails_at = dice.randint(0, reports) if dice.random() < source.weather.rank_fails else None
        for index in range(reports):
            await asyncio.sleep(dice.uniform(0.0, 1.0))
            if fails_at == index:
                break
            source.say(self._fact(Reported, attempt, rank=rank, life=1, index=index, metrics={"loss": 1 / (index + 1)}))
            self._outcome[attempt, rank] = index + 1
        if fails_at is not None:
            error = ErrorInfo(type="RuntimeError", message=f"boom {rank}", kind="user")
            source.say(self._fact(RankFailed, attempt, rank=rank, life=1, error=error))
        else:
            self._done.add(rank)
            source.say(self._fact(RankReturned, attempt, rank=rank, life=1, reports=reports))

    def _fact(self, kind: type[AnyFact], attempt: int, **fields: object) -> AnyFact:
        return make(kind, self.source, attempt, **fields)


def make(kind: type[AnyFact], source: Source, attempt: int, **fields: object) -> AnyFact:
    """Make a fact; the spool fills in incarnation and number."""
    base: dict[str, object] = {"source": source.name, "incarnation": 0, "number": 0, "attempt": attempt}
    wire = {"kind": kind.__struct_config__.tag, **base, "clock_s": source.now, **msgspec.to_builtins(fields)}
    return msgspec.convert(wire, kind)


async def supervise(owner: asyncio.TaskGroup, source: Source, outcome: dict[tuple[int, int], int]) -> None:
    """Play the supervisor: place, start a runner, say when it is lost, release."""
    dice, placed, released, runners = source.dice, 0, 0, 0
    runner: Runner | None = None
    lost = False
    while True:
        await asyncio.sleep(TICK_S)
        shown = source.seen()
        if shown is None or source.spool.incarnation is None:
            continue
        if shown.want == "gone":
            break
        if runner is not None and runner.gone.is_set() and shown.want != "stop" and not lost:
            lost = True
            source.say(make(RunnerLost, source, shown.attempt, node=NODE, signal=9, reason="killed"))
        if shown.want == "place" and shown.attempt > placed:
            if dice.random() < 0.2:
                source.say(make(Queued, source, shown.attempt, ahead=1, free=0, needed=shown.num_workers))
                await asyncio.sleep(dice.uniform(0.1, 3.0))
            placed, lost, runners = shown.attempt, False, runners + 1
            offer = PlaceOffer(node=NODE, slots=shown.num_workers)
            source.say(make(Placed, source, shown.attempt, places=(offer,)))
            voice = Source(source.run, NODE, f"runner-{runners}", dice, source.weather)
            runner = Runner(voice, shown.attempt, outcome)
            owner.create_task(runner.live(owner))
        if shown.want == "stop" and shown.attempt > released and (runner is None or runner.gone.is_set()):
            released, placed, runner = shown.attempt, max(placed, shown.attempt), None
            source.say(make(Released, source, shown.attempt))


@asynccontextmanager
async def actors() -> AsyncIterator[asyncio.TaskGroup]:
    """Own the tasks of everybody but the controller, and end them at the end."""

    class Over(Exception):
        """The play is over."""

    async def curtain() -> None:
        raise Over

    try:
        async with asyncio.TaskGroup() as owner:
            yield owner
            owner.create_task(curtain())
    except* Over:
        pass


async def play(seed: int) -> Outcome:
    """Run one simulation."""
    dice = random.Random(seed)
    weather = weather_of(dice)
    world = MemoryWorld()
    run = world.of(RUN)
    kinds: tuple[FaultKind, ...] = ("mute", "deaf", "full")
    run.log.plan = {k: dice.choice(kinds) for k in range(APPENDS_PLANNED_COUNT) if dice.random() < weather.append_fault}
    job = Job(
        id=RUN,
        entrypoint="pack.mod:train",
        scaling=ScalingConfig(num_workers=weather.workers),
        failure=FailureConfig(max_failures=weather.max_failures, controller_failure_limit=5),
    )
    world.jobs.publish(encode_job(job))
    outcome: dict[tuple[int, int], int] = {}
    async with actors() as owner:
        pool = Source(run, "pool-local", "pool-1", dice, weather)
        owner.create_task(pool.talk())
        owner.create_task(supervise(owner, pool, outcome))
        if weather.aborts:
            owner.create_task(abort(run, dice))
        if weather.inbox_lost:
            owner.create_task(lose_inbox(run, dice))
        await host(world, run, dice, weather)
    history = await read_log(run.log.log, RUN)
    return Outcome(weather, history, status(run), run, world, outcome)


async def host(world: MemoryWorld, run: MemoryRun, dice: random.Random, weather: Weather) -> None:
    """Host the run, killed now and then, until it is over and its key is free."""
    for _ in range(weather.kills_count):
        hosted = Hosted(world, "ctl-0")
        await asyncio.sleep(dice.uniform(0.0, 15.0))
        await hosted.die()
        await asyncio.sleep(dice.uniform(0.0, 20.0))
        if not world.jobs.answered:
            world.jobs.publish(run_job(world), again=1)
    hosted = Hosted(world, "ctl-0")
    try:
        await until(
            lambda: run.status.data is not None and status(run).terminal and not world.owners.values, END_WITHIN_S
        )
    finally:
        await hosted.stop()


def run_job(world: MemoryWorld) -> bytes:
    """Return the job again, as the queue gives it out until it is answered."""
    return world.jobs.published[1]


async def abort(run: MemoryRun, dice: random.Random) -> None:
    """Ask once, some time, that the run be aborted; as a client does, again until it is answered."""
    await asyncio.sleep(dice.uniform(0.0, 20.0))
    while run.status.data is None or "stop-it" not in status(run).requests:
        run.inbox.publish("request.abort", msgspec.json.encode(AbortRun(id="stop-it", reason="enough")))
        await asyncio.sleep(1.0)
        if run.status.data is not None and status(run).terminal:
            return


async def lose_inbox(run: MemoryRun, dice: random.Random) -> None:
    """Make the inbox anew, with nothing in it: acknowledged facts are gone."""
    await asyncio.sleep(dice.uniform(0.0, 20.0))
    run.inbox.forget()


def simulate(seed: int) -> Outcome:
    """Return what comes of a seed."""
    return run_virtual(play(seed))
