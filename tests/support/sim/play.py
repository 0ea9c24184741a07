"""Plays a scenario under a seed: everybody begins, trouble comes and goes, and when all is calm every run must end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.status import Status
from runfold.replay.history import History
from runfold.replay.source import read_log
from support.memory_kept import unsettled_in
from support.sim.archiver import ArchiverSeat
from support.sim.machines import ControllerSeat, PoolSeat, User
from support.sim.process import CURRENT, owned_task, simulated_time
from support.sim.scenario import Scenario
from support.sim.weather import Weather
from support.sim.world import World, make_world
from support.virtual import run_virtual

END_WITHIN_S: Final = 600.0
"""How long after all is calm the last run may end: start-up, stop and back-off take their time."""
LOOK_EVERY_S: Final = 0.5
ARCHIVED_WITHIN_S: Final = 10.0
QUIET_S: Final = 3.0
"""How long it is still listened after the last run has ended: nothing may be said any more."""


@dataclass
class Outcome:
    """What came of a play: what stands at the broker, and what really happened."""

    scenario: Scenario
    seed: int
    world: World
    user: User
    archiver: ArchiverSeat
    histories: dict[str, History]
    statuses: dict[str, Status | None]
    ended_s: float

    @property
    def steps(self) -> int:
        """How much happened on the net."""
        return self.world.net.steps

    @property
    def logs(self) -> dict[str, list[bytes]]:
        """Every log, byte for byte."""
        return {run: [link.data for link in history.links] for run, history in self.histories.items()}


def simulate(scenario: Scenario, seed: int, level: int = logging.ERROR) -> Outcome:
    """Return what comes of a scenario under a seed: always the same. `level`: from which on logs are kept."""
    with simulated_time(), _heard(level) as heard:
        outcome = run_virtual(_play(scenario, seed))
    outcome.world.crashes += heard.found
    outcome.world.truth.happened += heard.lines
    return outcome


async def _play(scenario: Scenario, seed: int) -> Outcome:
    asyncio.get_running_loop().set_task_factory(owned_task)
    world = make_world(scenario, seed)
    controllers = [ControllerSeat(world, f"ctl-{k}") for k in range(world.dice.randint(*scenario.controllers))]
    pool, user = PoolSeat(world), User(world)
    archiver = ArchiverSeat(world)
    weather = Weather(world, controllers, pool, user, archiver)
    weather.begin()
    for controller in controllers:
        controller.start()
    pool.start()
    user.begin()
    if world.has_archive:
        archiver.start()
    await asyncio.sleep(scenario.calm_s)
    weather.calm()
    ended_s = await _ends(world, user)
    histories = {run: await read_log(world.broker.of(run).log.log, run) for run in user.jobs}
    if world.has_archive:
        await asyncio.sleep(ARCHIVED_WITHIN_S)
    for controller in controllers:
        controller.die()
    pool.die()
    archiver.die()
    statuses = {run: user.status(run) for run in user.jobs}
    return Outcome(scenario, seed, world, user, archiver, histories, statuses, ended_s)


async def _ends(world: World, user: User) -> float:
    """Wait until every run is over, or it has taken too long."""
    deadline = world.now + END_WITHIN_S
    await _all_over(world, user, deadline)
    ended_s = world.now
    await asyncio.sleep(QUIET_S)
    # Somebody who hears late of an end may look once more after the run.
    await _all_over(world, user, deadline)
    return ended_s


async def _all_over(world: World, user: User, deadline: float) -> None:
    while world.now < deadline and not all(_over(world, run) for run in user.jobs):
        await asyncio.sleep(LOOK_EVERY_S)


def _over(world: World, run: str) -> bool:
    """Whether a run is over: its last assignment and its status say so, and its key is free."""
    if run in world.truth.damaged:
        return True
    one = world.broker.of(run)
    data = one.assignment.data
    gone = data is not None and msgspec.json.decode(data, type=Assignment).want == "gone"
    return gone and run not in world.broker.owners() and run not in unsettled_in({run: one})


class _Heard(logging.Handler):
    """Keeps what everybody logs, and the errors of ours that somebody caught and logged."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.found: list[tuple[str, BaseException]] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        who, now_s = CURRENT.get(), asyncio.get_running_loop().time()
        self.lines.append(f"{now_s:9.3f} {who.boot if who is not None else '?'}: {record.getMessage()}")
        if record.exc_info is not None and record.exc_info[1] is not None:
            self.found.append((record.getMessage(), record.exc_info[1]))


@contextmanager
def _heard(level: int) -> Iterator[_Heard]:
    """Hear what is logged, and let nobody else."""
    handler, logger = _Heard(level), logging.getLogger("runfold")
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


def told(outcome: Outcome) -> str:
    """Return what happened, for people, in order."""
    return "\n".join(sorted(outcome.world.truth.happened, key=lambda line: float(line.split()[0])))


def terminal_data(outcome: Outcome) -> bytes:
    """Return the statuses as bytes, to compare two plays."""
    return msgspec.json.encode(outcome.statuses)
