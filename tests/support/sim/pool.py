"""The supervisor: the real one, with simulated runners to start and to find."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Final, cast

from msgspec.structs import replace

from runfold.events.assignment import Assignment, Mark
from runfold.events.facts import PlaceOffer
from runfold.workers.desk import Desk, Site
from runfold.workers.hatchery import STOP_MARGIN_S, Hatchery
from runfold.workers.pipe import EXIT_TAKEN, RunnerSpec, StopNow
from runfold.workers.places import Place
from runfold.workers.placing import RunnerHere
from runfold.workers.pools import pool as pools
from runfold.workers.pools.local import _UNITS, Demand, Slots
from runfold.workers.pools.machine import SETTLE_S, MachinePool
from runfold.workers.supervisor import FLUSH_S, Supervisor, SupervisorConfig
from support.sim.connection import SimConnection, SimFacts, watch_assignments
from support.sim.process import Process
from support.sim.runner import SimRunner
from support.sim.world import POOL, World

SEEN_S: Final = (0.0, 0.02)
"""How soon the end of a process is seen by whoever watches it."""


class Watched:
    """A runner as its supervisor sees it: one that it started, or one that it found."""

    def __init__(self, who: Process, runner: SimRunner, on_end: Callable[[], None], *, found: bool) -> None:
        self.runner = runner
        self.node = runner.node
        self.pid = runner.pid
        self.told = 0
        self.secret = b""
        self._who, self._on_end, self._found = who, on_end, found
        self._ended_s: float | None = None
        self._kill_at: float | None = None
        runner.attend(who)
        who.spawn(self._watch(), f"watch {runner.process.boot}")

    @property
    def place(self) -> Place:
        """What its file says."""
        return self.runner.place

    @property
    def here(self) -> RunnerHere:
        """What the planner needs to know; of one that was found nobody sees how it ends."""
        how, seen = self.runner, self._ended_s is not None
        return RunnerHere(
            node=self.node,
            ended_s=self._ended_s,
            code=how.code if seen and not self._found else None,
            signal=how.signal if seen and not self._found else None,
            reason="nobody could see how it ended" if self._found else "",
            told=self.told,
            orderly=seen and self._found and how.code == 0,
            place_taken=seen and not self._found and how.code == EXIT_TAKEN,
        )

    @property
    def alive(self) -> bool:
        """Whether it lives, as far as is seen."""
        return self._ended_s is None

    def stop(self, reason: str, grace_s: float, said_by: Mark | None = None) -> None:
        """Tell it to stop, and kill it when it does not in time."""
        loop = asyncio.get_running_loop()
        kill_at = loop.time() + grace_s + STOP_MARGIN_S
        if not self.alive or (self._kill_at is not None and kill_at >= self._kill_at):
            return
        self._kill_at = kill_at
        self.runner.told(StopNow(reason=reason, grace_s=grace_s, said_by=said_by))
        loop.call_at(kill_at, self._kill_late, kill_at)

    def _kill_late(self, kill_at: float) -> None:
        if self._who.alive and self.alive and self._kill_at == kill_at:
            self.runner.die(signal.SIGKILL)

    async def _watch(self) -> None:
        await self.runner.ended.wait()
        self._ended_s = asyncio.get_running_loop().time() + self._who.skew_s
        self._on_end()


class SimDesk(Desk):
    """The real desk; the runners that it starts are simulated."""

    def __init__(
        self,
        world: World,
        who: Process,
        assignment: Assignment,
        facts: SimFacts,
        on_change: Callable[[], None],
        settled_s: float,
    ) -> None:
        site = Site(url="", namespace="runfold", pool=POOL, base_dir=".")
        start = cast("Callable[[RunnerSpec, Callable[[], None]], pools.Watched]", None)
        super().__init__(assignment, facts, site, start, on_change, settled_s)
        self._world, self._who = world, who

    def _start(self, place: PlaceOffer, demand: Demand) -> pools.Watched:
        runner = SimRunner(self._world, replace(demand, run=self.assignment.run), place)
        runner.start()
        return cast("pools.Watched", Watched(self._who, runner, self._on_change, found=False))


class Estate:
    """The runners that earlier supervisors have left: see `runfold.workers.estate`."""

    def __init__(self, world: World, who: Process, on_change: Callable[[], None]) -> None:
        self.settled_s = world.now + who.skew_s + SETTLE_S
        self.unclaimed: dict[str, list[Watched]] = {}
        self._world, self._who, self._on_change = world, who, on_change

    def look(self, knows: Callable[[Place], bool]) -> list[Watched]:
        """Return runners that were not known before."""
        kept = {runner.pid for runners in self.unclaimed.values() for runner in runners}
        living = [one for one in self._world.truth.runners if one.holds_place]
        found = [one for one in living if not knows(one.place) and one.pid not in kept]
        return [Watched(self._who, runner, self._on_change, found=True) for runner in found]

    def keep(self, runner: Watched) -> None:
        """Keep a runner until its run is heard of."""
        self.unclaimed.setdefault(runner.place.run, []).append(runner)

    def claim(self, run: str) -> list[Watched]:
        """Hand over the runners of a run that is heard of."""
        return self.unclaimed.pop(run, [])

    def end_unclaimed(self) -> list[str]:
        """Return the runs of which no runner is left."""
        return [run for run, runners in self.unclaimed.items() if not any(one.alive for one in runners)]


class SimSlots(Slots):
    """The slots of a pool whose nodes come and go. One that `grows` may have room one day for what has none now."""

    def __init__(self, nodes: Mapping[str, int], *, grows: bool) -> None:
        super().__init__({node: {"CPU": float(slots)} for node, slots in nodes.items()})
        self._grows = grows

    def never(self, demand: Demand) -> str | None:
        """Return why a demand could never be met."""
        return None if self._grows else super().never(demand)

    def come(self, node: str, slots: int) -> None:
        """Have another node."""
        units = round(slots * _UNITS)
        self._total[node], self._free[node], self._ever[node] = {"CPU": units}, {"CPU": units}, {"CPU": units}

    def go(self, node: str) -> None:
        """Have a node no more."""
        self._total.pop(node, None)
        self._ever.pop(node, None)
        self._free.pop(node, None)


class SimSupervisor(Supervisor):
    """One life of the pool's supervisor."""

    def __init__(self, world: World) -> None:
        self.process = world.process("pool")
        self._world = world
        self._link = SimConnection(self.process, world.net, world.broker)
        nodes = {node.name: node.slots for node in world.nodes.values() if node.up}
        first, *rest = nodes
        config = SupervisorConfig(
            url="", node=first, slots=nodes[first], more_nodes={name: nodes[name] for name in rest}, adopt=True
        )
        pool = MachinePool({first: nodes[first]}, cast("Hatchery", None), POOL, None)
        self.process.run(lambda: super(SimSupervisor, self).__init__(config, self._link.real(), pool))
        self._boot = self.process.boot
        self._slots = self.slots = SimSlots(nodes, grows=bool(world.scenario.trace))
        self._estate = Estate(world, self.process, self._wake.set)  # type: ignore[assignment]  # its simulated twin

    def look_again(self) -> None:
        """See that the pool has changed."""
        self._wake.set()

    def start(self) -> None:
        """Be at work."""
        self.process.spawn(self._work(), "supervisor")

    async def _work(self) -> None:
        self._look()
        watch_assignments(self.process, self._world.net, self._world.broker, self._hear)
        self.process.spawn(self._look_on(), "look")
        self.process.spawn(self._beat(), "beat")
        await self._turns()

    def _open(self, assignment: Assignment) -> Desk:
        facts = SimFacts(
            self._link,
            self._world.truth,
            run=assignment.run,
            source=f"pool-{POOL}",
            boot=f"{self._boot}/{assignment.run}",
            flush_s=FLUSH_S,
        )
        facts.start()
        desk = SimDesk(self._world, self.process, assignment, facts, self._wake.set, self._estate.settled_s)
        self._desks[assignment.run] = desk
        for runner in self._estate.claim(assignment.run):
            desk.adopt(runner)
        return desk
