"""Everybody in one place: who lives, what stands, what happened."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from support.sim.broker import Broker
from support.sim.net import Net
from support.sim.process import CLOCK_MAX_S, Process
from support.sim.scenario import Scenario
from support.sim.truth import Truth

if TYPE_CHECKING:
    from runfold.workers.scope import Scope
    from support.sim.rank import SimRank

USER: Final = "user"
POOL: Final = "local"


@dataclass
class Node:
    """A machine of the pool: its slots; gone for a while when it dies."""

    name: str
    slots: int
    up: bool = True


@dataclass
class World:
    """`crashes` are errors of ours that ended a task: none may be left at the end."""

    scenario: Scenario
    dice: random.Random
    net: Net
    truth: Truth
    broker: Broker
    nodes: dict[str, Node] = field(default_factory=dict)
    crashes: list[tuple[str, BaseException]] = field(default_factory=list)
    slots: int = 0
    """What each node has, unless somebody says otherwise."""
    is_calm: bool = False
    fails: float = 0.0
    """How likely a rank fails in an attempt."""
    has_archive: bool = False
    archiver_mortality: float = 0.0
    """How likely the archiver dies before a write."""
    boots: int = 0
    _mates: dict[tuple[str, Scope], list[SimRank]] = field(default_factory=dict)
    _loaded: dict[tuple[str, Scope], list[asyncio.Event]] = field(default_factory=dict)

    def process(self, name: str) -> Process:
        """Return a new process at an address of the net."""
        self.boots += 1
        boot = f"{name}#{self.boots}"
        return Process(name, boot, self.dice.uniform(1.0, CLOCK_MAX_S), lambda task, error: self.crash(task, error))

    def crash(self, task: str, error: BaseException) -> None:
        """Note an error of ours."""
        self.crashes.append((task, error))
        self.truth.note(f"CRASHED: {task}: {error!r}")

    def mates(self, run: str, scope: Scope) -> list[SimRank]:
        """Return the ranks of a run that have met in a scope."""
        return self._mates.setdefault((run, scope), [])

    async def all_loaded(self, run: str, scope: Scope) -> None:
        """Wait at a scope's barrier until all its ranks have come."""
        loaded = self._loaded.setdefault((run, scope), [])
        come = asyncio.Event()
        loaded.append(come)
        if len(loaded) >= scope.size:
            for mate in loaded:
                mate.set()
        await come.wait()

    def meet(self, one: str, other: str) -> bool:
        """Whether two machines can talk to each other, without the broker."""
        return one == other or self.net.reaches(one, other)

    @property
    def now(self) -> float:
        """The world's time, which nobody in it knows."""
        return asyncio.get_running_loop().time()


def make_world(scenario: Scenario, seed: int) -> World:
    """Return an empty world, in a running event loop."""
    loop = asyncio.get_running_loop()
    dice = random.Random(seed)
    truth = Truth(loop.time)
    net = Net(dice, scenario.messages)
    world = World(scenario, dice, net, truth, Broker(net, truth, dice))
    slots = world.slots = dice.randint(*scenario.slots)
    for k in range(dice.randint(*scenario.nodes)):
        world.nodes[f"node-{k}"] = Node(f"node-{k}", slots)
    world.has_archive = dice.random() < scenario.archives
    world.fails = dice.choice(scenario.ranks.fails)
    return world
