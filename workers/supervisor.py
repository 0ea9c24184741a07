"""The supervisor: one process a pool, the only arbiter of its slots. It places groups, and keeps watch over runners."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from pathlib import Path
from typing import Final

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.beats import PoolBeat
from runfold.events.facts import PlaceOffer
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.connection import Connection
from runfold.events.pools import LOCAL_POOL
from runfold.workers.beside import Beside
from runfold.workers.capacity import Capacity
from runfold.workers.desk import Desk, Home, Site
from runfold.workers.estate import LOOK_EVERY_S, Estate
from runfold.workers.facts import Facts
from runfold.workers.follow import follow_assignments
from runfold.workers.mending import PREFIX, Dismiss, GiveUp, Mend, waits_of
from runfold.workers.nursery import Nursery
from runfold.workers.places import Place
from runfold.workers.placing import (
    SEPARATOR,
    Ask,
    Forget,
    Free,
    SayLost,
    SayReleased,
    Step,
    StopRunners,
    Withdraw,
    placing,
)
from runfold.workers.pools.local import Demand
from runfold.workers.pools.pool import Pool
from runfold.workers.pools.ray import RayConfig
from runfold.workers.pulse import BEAT_EVERY_S, say
from runfold.workers.together import comes_first, until_one_ends

STOP_GRACE_S: Final = 5.0
"""When the supervisor itself is to stop: the time that ranks have to save, and then the patience with their end."""
RUNNERS_GONE_TIMEOUT_S: Final = 15.0
SETTLE_TIMEOUT_S: Final = 2.0
STORAGE_FOLDER: Final = "storage"
FLUSH_S: Final = 0.5
_LOG: Final = logging.getLogger("runfold.workers")


class SupervisorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the broker, as its worker user; the pool, its node and its slots (CPUs).

    `base_dir` is where relative working directories start, `storage_dir` where runs without a `storage_path` keep their
    checkpoints. `more_nodes` are others on this machine, with their slots:
    each has a runner of its own, as if it were another machine. `labels` are those of nodes. `places_dir` is where
    runners hold their places; with `adopt` they wait there for the next supervisor when this one dies.
    """

    url: str
    namespace: str = "runfold"
    pool: str = LOCAL_POOL
    node: str = "local"
    slots: int = 1
    base_dir: str = "."
    storage_dir: str = ""
    more_nodes: dict[str, int] = {}
    labels: dict[str, dict[str, str]] = {}
    places_dir: str | None = None
    adopt: bool = False
    ray: RayConfig | None = None


class Supervisor:
    """The pool's runs, its slots and its runners, on one connection."""

    def __init__(self, config: SupervisorConfig, connection: Connection, pool: Pool) -> None:
        self._config = config
        self._connection = connection
        self._pool = pool
        self._boot = secrets.token_hex(8)
        self._slots = pool.book
        self._desks: dict[str, Desk] = {}
        self._nursery = Nursery()
        self._blobs = Blobs(connection)
        self._closing: set[asyncio.Task[None]] = set()
        self._leave_by_s: float | None = None
        self._wake = asyncio.Event()
        self._site = Site(
            url=config.url,
            namespace=config.namespace,
            pool=config.pool,
            base_dir=config.base_dir,
            storage_dir=config.storage_dir or str(Path(config.base_dir) / STORAGE_FOLDER),
            places_dir=config.places_dir,
            adopt=config.adopt,
        )
        self._estate = Estate(pool, self._wake.set)
        self._capacity = Capacity(pool.book, connection, config.pool, config.places_dir, self._wake.set)
        pool.attend(self._wake.set)

    async def serve(
        self, stop: asyncio.Event, orphaned: asyncio.Event, reclaimed: asyncio.Event, hurried: asyncio.Event
    ) -> None:
        """Do what the assignments say until `stop`; then end everything, with bounded patience.

        Runs that go on later have the time that they are told of to save, unless it is `hurried`. When it is
        `orphaned`, or fails, its runners are left to the next supervisor, if they may be adopted. `reclaimed` says
        that the machine will be taken back.
        """
        self._look()
        follower = follow_assignments(self._connection, self._hear)
        tasks: set[asyncio.Task[object]] = {
            asyncio.create_task(self._turns(), name="supervisor"),
            asyncio.create_task(self._part(stop, hurried), name="stop"),
            asyncio.create_task(comes_first(orphaned, stop), name="orphaned"),
            asyncio.create_task(self._tell_reclaimed(reclaimed), name="reclaimed"),
            asyncio.create_task(follower.wait_ended(), name="assignments"),
            asyncio.create_task(self._beat(), name="pool beat"),
            asyncio.create_task(self._look_on(), name="places"),
            asyncio.create_task(self._pool.serve(), name="pool"),
            asyncio.create_task(self._capacity.serve(), name="capacity"),
        }
        try:
            await until_one_ends(tasks)
        finally:
            if stop.is_set() or not self._config.adopt:
                await self._end_runners(self._stopped)
            else:
                await self._let_go()
            await follower.close()
            await asyncio.gather(*(desk.close() for desk in self._desks.values()), *self._closing)
            await self._nursery.close()

    def _hear(self, assignment: Assignment) -> None:
        if self._pool.remote is not None:
            self._pool.remote.hear(assignment)
        desk = self._desks.get(assignment.run)
        if desk is None:
            left = assignment.run in self._estate.unclaimed
            if assignment.pool != self._config.pool or (assignment.want == "gone" and not left):
                return
            desk = self._open(assignment)
        desk.assignment = assignment
        desk.facts.hear(assignment)
        if desk.beside is not None:
            desk.beside.hear(assignment)
        self._wake.set()

    def _open(self, assignment: Assignment) -> Desk:
        facts = Facts(
            self._connection,
            run=assignment.run,
            source=f"pool-{self._config.pool}",
            boot=self._boot,
            flush_s=FLUSH_S,
            on_change=self._wake.set,
        )
        facts.start()
        beside = Beside(
            Home(assignment.run, self._site.base_dir, self._site.storage_dir),
            facts.source,
            self._nursery,
            self._blobs,
            facts.say,
            self._demand,
            self._give_back,
            self._pool.remote,
            adopt=self._site.adopt,
        )
        desk = self._desks[assignment.run] = Desk(
            assignment, facts, self._site, self._pool.start, self._wake.set, self._estate.settled_s, beside
        )
        for runner in self._estate.claim(assignment.run):
            desk.adopt(runner)
        return desk

    async def _turns(self) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            wake_at = [due for desk in list(self._desks.values()) if (due := self._tend(desk, now)) is not None]
            if self._leave_by_s is None:
                self._grant()
            elif now >= self._leave_by_s or not any(desk.may_save for desk in self._desks.values()):
                return
            else:
                wake_at.append(self._leave_by_s)
            self._pass_on()
            if (due := self._capacity.tend(self._slots, self._desks, now)) is not None:
                wake_at.append(due)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(wake_at) - now) if wake_at else None):
                    await self._wake.wait()

    def _tend(self, desk: Desk, now: float) -> float | None:
        """Do what is to be done about one run; return when to look again. Raises what nobody here may outlive."""
        if (crashed := desk.facts.crashed) is not None:
            # It would say nothing of this run any more: another supervisor does, which adopts the runners.
            raise crashed
        try:
            todo = placing(desk.assignment, desk.here, now)
            for step in todo.steps:
                self._do(desk, step)
        except Exception:
            # One broken run never affects another.
            _LOG.exception("%s: the supervisor could not do what is wanted", desk.assignment.run)
            return None
        return todo.wake_at

    def _do(self, desk: Desk, step: Step) -> None:
        run = desk.assignment.run
        match step:
            case Ask(demand=demand):
                if (why := self._slots.never(demand)) is not None:
                    desk.refuse(why)
                else:
                    self._slots.ask(demand)
                    desk.asked()
            case Withdraw():
                self._slots.withdraw(run)
                desk.withdrawn()
            case StopRunners(reason=reason, grace_s=grace_s):
                desk.stop_runners(reason, grace_s)
            case SayLost():
                desk.lost(step)
            case Mend(demand=demand):
                self._slots.release(demand.run)
                self._slots.ask(demand)
                desk.mends(step)
            case GiveUp(node=node):
                self._slots.part(run, node)
                desk.give_up(node)
                self._wake.set()
            case Dismiss(node=node):
                desk.dismiss(node)
            case Free():
                for key in (run, *desk.mended):
                    self._slots.withdraw(key)
                    self._slots.release(key)
                desk.freed()
                # What was decided with the slots still held is looked at again.
                self._wake.set()
            case SayReleased():
                desk.release()
            case Forget():
                self._forget(desk)

    def _grant(self) -> None:
        for granted in self._slots.grant():
            run, _, task = granted.demand.run.partition(SEPARATOR)
            desk = self._desks[run]
            if not task:
                desk.place(granted)
            elif task.startswith(PREFIX):
                if not desk.mend(int(task.removeprefix(PREFIX)), granted):
                    self._slots.take_back(granted)
                    self._wake.set()
            elif desk.beside is not None:
                desk.beside.granted(task)
        for given_up in self._slots.given_up():
            if (asking := self._desks.get(given_up.demand.run)) is not None:
                asking.not_placed(given_up)
        for run, waiting in waits_of(self._slots.waiting(), SEPARATOR).items():
            self._desks[run].waits(waiting)

    def _pass_on(self) -> None:
        """Tell runs of nodes of theirs that will be taken back, or stay after all."""
        for notice in self._pool.notices():
            for desk in self._desks.values():
                held = {runner.node for runner in desk.runners if runner.alive}
                meant = (*notice.nodes, *(notice.mates if desk.assignment.slice is not None else ()))
                if nodes := tuple(node for node in meant if node in held):
                    desk.pass_on(notice, nodes)

    def _demand(self, demand: Demand) -> str | None:
        """Put the demand of a task beside a group into the queue; return why it can never be met, if so."""
        if (never := self._slots.never(demand)) is None:
            self._slots.ask(demand)
            self._wake.set()
        return never

    def _give_back(self, key: str) -> None:
        self._slots.withdraw(key)
        self._slots.release(key)
        self._wake.set()

    def _forget(self, desk: Desk) -> None:
        self._desks.pop(desk.assignment.run, None)
        task = asyncio.create_task(desk.close(), name=f"forget {desk.assignment.run}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # --- what earlier supervisors left

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._look()

    def _look(self) -> None:
        for runner in self._estate.look(self._knows):
            place, desk = runner.place, self._desks.get(runner.place.run)
            if desk is None:
                self._estate.keep(runner)
            elif not desk.adopt(runner):
                continue
            demand = Demand(run=place.run, attempt=place.attempt, num_workers=place.slots, resources=place.resources)
            self._slots.hold(demand, PlaceOffer(node=place.node, slots=place.slots))
            self._wake.set()
        for run in self._estate.end_unclaimed():
            self._estate.claim(run)
            self._slots.release(run)
            self._wake.set()

    def _knows(self, place: Place) -> bool:
        desk = self._desks.get(place.run)
        return desk is not None and desk.knows(place)

    async def _let_go(self) -> None:
        """Leave the runners to the next supervisor: they go on, and wait for it."""
        if self._pool.remote is not None:
            self._pool.remote.let_go()
        runners = [runner for desk in self._desks.values() for runner in desk.everyone]
        await asyncio.gather(self._estate.let_go(), *(runner.let_go() for runner in runners))

    async def _tell_reclaimed(self, reclaimed: asyncio.Event) -> None:
        """Say of every run here that its nodes will be taken back, each time the machine is said to be."""
        while True:
            await reclaimed.wait()
            reclaimed.clear()
            _LOG.warning("SIGTERM, which runfold never sends: taken for the notice that this machine is taken back")
            for desk in self._desks.values():
                here = (runner.node for runner in desk.runners if runner.alive and self._pool.is_here(runner.node))
                if nodes := tuple(dict.fromkeys(here)):
                    desk.notice(nodes, None, f"SIGTERM to the supervisor of pool {self._config.pool}")

    async def _part(self, stop: asyncio.Event, hurried: asyncio.Event) -> None:
        """Wait until it is to stop; then say so, and give no more places. What may be saved is waited for in the turns.

        After a one-shot run nobody goes on from what is saved.
        """
        await stop.wait()
        if not self._config.adopt:
            return
        self._leave_by_s = time.monotonic() + STOP_GRACE_S
        for desk in self._desks.values():
            desk.part(STOP_GRACE_S, self._stopped)
        self._wake.set()
        await hurried.wait()

    @property
    def _stopped(self) -> str:
        return f"the supervisor of pool {self._config.pool} was stopped"

    async def _beat(self) -> None:
        subject = self._connection.names.subjects.pool_beat(self._config.pool)
        while True:
            if self._connection.is_up:
                now = time.monotonic()
                said = PoolBeat(
                    pool=self._config.pool,
                    supervisor=self._boot,
                    nodes=self._slots.nodes,
                    closed=self._capacity.closed,
                    free=self._slots.free,
                    runs=tuple(run for run, desk in self._desks.items() if desk.holds),
                    unsaid_s={run: s for run, desk in self._desks.items() if (s := desk.facts.unsaid_s(now)) >= 1},
                )
                await say(self._connection, subject, said)
            await asyncio.sleep(BEAT_EVERY_S)

    async def _end_runners(self, reason: str) -> None:
        """Stop every runner and say so, so that the runs go on elsewhere, or here later."""
        holding = [desk for desk in self._desks.values() if any(runner.alive for runner in desk.everyone)]
        if holding:
            await self._end_those(holding, reason)
        for run, desk in self._desks.items():
            if not any(runner.alive for runner in desk.everyone):
                for key in (run, *desk.mended):
                    self._slots.release(key)

    async def _end_those(self, holding: list[Desk], reason: str) -> None:
        for desk in holding:
            desk.part(STOP_GRACE_S, reason)
            desk.stop_runners(reason, STOP_GRACE_S)
        waits = [asyncio.ensure_future(runner.wait()) for desk in holding for runner in desk.everyone]
        await asyncio.wait(waits, timeout=RUNNERS_GONE_TIMEOUT_S)
        for desk in holding:
            for runner in desk.runners:
                if runner.told < desk.assignment.attempt:
                    here = runner.here
                    desk.lost(SayLost(node=here.node, code=here.code, signal=here.signal, reason=reason))
        await asyncio.gather(*(desk.facts.settled(SETTLE_TIMEOUT_S) for desk in holding))
