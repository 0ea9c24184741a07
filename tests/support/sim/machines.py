"""Controllers and the pool's supervisor, each as something that dies and is started again; and the user."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from msgspec.structs import replace

from runfold.controller.host import Setting
from runfold.controller.leases import NameTaken
from runfold.controller.main import host_runs
from runfold.controller.policies import DEFAULT
from runfold.controller.ports import Unavailable
from runfold.controller.seed import Identity
from runfold.events.conclusions import Decider
from runfold.events.config import FailureConfig, ScalingConfig, Timeouts
from runfold.events.job import Job, encode_job
from runfold.events.requests import AbortRun, CancelPreemption, NoticePreemption, Request
from runfold.events.status import Status
from runfold.events.subjects import Subjects
from support.sim.net import NoAnswer
from support.sim.pool import SimSupervisor
from support.sim.ports import SimPorts
from support.sim.process import Process
from support.sim.truth import Harm
from support.sim.world import USER, World

ASK_AGAIN_S: Final = 1.0
START_AGAIN_S: Final = 0.1
USER_TIMEOUT_S: Final = 2.0
DECIDER: Final = Decider(version="simulated", policies=DEFAULT.names)


class ControllerSeat:
    """A controller's seat: one life of it at a time. `stop` hands its runs over."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._stop = asyncio.Event()
        self.process: Process | None = None
        self.kept = False
        """Whether it is started again when it ends."""

    def start(self) -> None:
        """Begin a life."""
        if self.process is not None and self.process.alive:
            return
        self.process = self._world.process(self.name)
        self._stop = asyncio.Event()
        self.process.spawn(self._live(self.process, self._stop), "controller")

    def die(self) -> None:
        """End it where it stands."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """End it in order."""
        self._stop.set()

    async def _live(self, process: Process, stop: asyncio.Event) -> None:
        world = self._world
        setting = Setting(
            ports=SimPorts(process, world.net, world.broker, world.truth),
            me=Identity(controller=self.name, decider=DECIDER),
            subjects=Subjects(),
            monotonic=lambda: world.now + process.skew_s,
            at=process.at,
        )
        try:
            await host_runs(setting, ready=lambda: None, stop=stop)
        except NameTaken as error:
            world.truth.note(f"{process.boot}: {error}")
        world.truth.note(f"{process.boot} has stopped")
        process.kill()
        if self.kept:
            asyncio.get_running_loop().call_later(START_AGAIN_S, self.start)


class PoolSeat:
    """The pool's supervisor, one life at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.supervisor: SimSupervisor | None = None

    def start(self) -> None:
        """Begin a life."""
        if self.supervisor is None or not self.supervisor.process.alive:
            self.supervisor = SimSupervisor(self._world)
            self.supervisor.start()

    def die(self) -> None:
        """End it where it stands."""
        if self.supervisor is not None:
            self.supervisor.process.kill()

    def node_comes(self, node: str, slots: int) -> None:
        """Let it see a new node, or hear of it when it lives again."""
        if self.supervisor is not None and self.supervisor.process.alive:
            self.supervisor.slots.come(node, slots)
            self.supervisor.look_again()

    def node_goes(self, node: str) -> None:
        """Let it see that a node is gone."""
        if self.supervisor is not None:
            self.supervisor.slots.go(node)
            self.supervisor.look_again()

    def node_has(self, node: str, slots: int) -> None:
        """Let a node have another number of slots."""
        self._world.nodes[node].slots = slots
        if self.supervisor is not None and self.supervisor.process.alive:
            self.supervisor.slots.resize(node, slots)
            self.supervisor.look_again()


class User:
    """Somebody who submits jobs and asks for things, each again until the broker says that it holds it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.process = world.process(USER)
        self.jobs: dict[str, Job] = {}

    def begin(self) -> None:
        """Submit jobs, and change one's mind about some."""
        scenario, dice = self._world.scenario, self._world.dice
        for k in range(dice.randint(*scenario.runs)):
            job = draw_job(self._world, f"run-{k}")
            self.jobs[f"run-{k}"] = job
            self.process.spawn(self._submit(f"run-{k}", job), f"submit run-{k}")
            if dice.random() < scenario.aborts:
                self.process.spawn(self._abort(f"run-{k}"), f"abort run-{k}")
            if dice.random() < scenario.notices:
                self.process.spawn(self._notice(f"run-{k}"), f"notice run-{k}")

    async def _submit(self, run: str, job: Job) -> None:
        dice = self._world.dice
        await asyncio.sleep(dice.uniform(0.0, 2.0))
        data = encode_job(job)
        while not await self._holds(lambda: self._world.broker.submit(run, data)):
            await asyncio.sleep(ASK_AGAIN_S)

    async def _abort(self, run: str) -> None:
        await self._later(run)
        await self._ask(run, "abort", AbortRun(id=f"abort-{run}", reason="enough"))

    async def _notice(self, run: str) -> None:
        dice = self._world.dice
        await self._later(run)
        node = dice.choice(list(self._world.nodes))
        self._world.truth.harm(Harm(run, "notice", 0, node))
        within_s = dice.choice((None, dice.uniform(0.0, 20.0)))
        await self._ask(run, "notice", NoticePreemption(id=f"notice-{run}", nodes=(node,), within_s=within_s))
        if dice.random() < 0.5:
            await asyncio.sleep(dice.uniform(0.0, 5.0))
        else:
            # What is taken back comes back in the end, or a run would wait for it for ever.
            while not self._world.is_calm:
                await asyncio.sleep(ASK_AGAIN_S)
        await self._ask(run, "cancel", CancelPreemption(id=f"cancel-{run}", nodes=(node,)))

    async def _later(self, run: str) -> None:
        """Wait some time after the run has come to be."""
        while self.status(run) is None:
            await asyncio.sleep(ASK_AGAIN_S)
        await asyncio.sleep(self._world.dice.uniform(0.0, 20.0))

    async def _ask(self, run: str, verb: str, request: Request) -> None:
        """Publish once, as `nats pub` does: what the broker acknowledges must be answered."""
        data = msgspec.json.encode(request)
        subject = f"request.{verb}"
        while not await self._holds(lambda: self._world.broker.publish(run, subject, data)):
            await asyncio.sleep(ASK_AGAIN_S)

    async def _holds(self, act: object) -> bool:
        try:
            await self._world.net.ask(self.process, act, timeout_s=USER_TIMEOUT_S)  # type: ignore[arg-type]  # any call
        except (NoAnswer, Unavailable):
            return False
        return True

    def status(self, run: str) -> Status | None:
        """Return a run's status as it stands."""
        data = self._world.broker.of(run).status.data
        return msgspec.json.decode(data, type=Status) if data is not None else None


def draw_scaling(world: World, most: int) -> ScalingConfig:
    """Draw how many ranks are asked for; of an elastic run at least 1, at most so many."""
    scenario, dice = world.scenario, world.dice
    if not scenario.elastic or dice.random() >= scenario.elastic:
        return ScalingConfig(num_workers=most)
    dwell_s = dice.uniform(*scenario.dwell_s)
    if scenario.trace:
        # A fleet begins with less than it has later.
        return ScalingConfig(
            num_workers=(dice.randint(1, 4), dice.randint(*scenario.workers)), elastic_resize_monitor_interval_s=dwell_s
        )
    return ScalingConfig(num_workers=(dice.randint(1, most), most), elastic_resize_monitor_interval_s=dwell_s)


def draw_replicas(world: World, scaling: ScalingConfig) -> ScalingConfig:
    """Draw whether the ranks have replica groups, and of which size."""
    scenario, dice, count = world.scenario, world.dice, scaling.num_workers
    if not scenario.replicas or dice.random() >= scenario.replicas or not isinstance(count, int):
        return scaling
    sizes = [size for size in range(1, count + 1) if count % size == 0]
    return replace(scaling, replica_group_size=dice.choice(sizes))


def draw_job(world: World, run: str) -> Job:
    """Draw what is asked for."""
    scenario, dice = world.scenario, world.dice
    most = sum(node.slots for node in world.nodes.values())
    return Job(
        id=run,
        entrypoint="pack.mod:train",
        scaling=draw_replicas(world, draw_scaling(world, min(dice.randint(*scenario.workers), most))),
        failure=FailureConfig(
            max_failures=dice.randint(*scenario.max_failures),
            max_hangs=scenario.max_hangs,
            controller_failure_limit=5,
            backoff_s=dice.choice((0.0, 0.0, 0.5)),
        ),
        timeouts=Timeouts(
            adopt_within_s=scenario.adopt_within_s,
            progress_timeout_s=scenario.progress_timeout_s,
            resize_wait_s=dice.uniform(0.0, 5.0) if scenario.elastic else Timeouts().resize_wait_s,
        ),
        priority=dice.choice((0, 0, 1)),
    )
