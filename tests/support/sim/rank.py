"""What a rank does with its life: loads, waits for the others, reports, and returns; or fails in one of many ways."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runfold.events.beats import RankBeat, RankPhase
from runfold.events.facts import RankExited, RankFailed, RankReturned, RankStarted, Reported
from runfold.events.failures import FailureKind
from runfold.events.transitions import RankLaid
from runfold.workers.limits import HUB_CONNECT_TIMEOUT_S
from runfold.workers.plan import Held
from support.sim.truth import Harm

if TYPE_CHECKING:
    from support.sim.runner import SimRunner
    from support.sim.scenario import RankTrouble
    from support.sim.world import World

LOAD_S: Final = (0.01, 0.8)
HEEDS_S: Final = (0.0, 0.4)
"""How soon a rank ends that is asked to."""
MATES_NOTICE: Final = 0.5
MATES_NOTICE_S: Final = (0.0, 0.5)
RETRY_S: Final = 0.2
SIGTERM: Final = 15
SIGKILL: Final = 9
SIGSEGV: Final = 11


@dataclass(frozen=True)
class Fate:
    """What a life is to bring: so many reports, one every so often, and its end."""

    reports: int
    trouble: RankTrouble | None
    fails_at: int


class SimRank:
    """One life of a rank."""

    def __init__(self, world: World, runner: SimRunner, attempt: int, laid: RankLaid) -> None:
        self.over = False
        self.attempt, self.rank = attempt, laid.rank
        self._world, self._runner, self._laid = world, runner, laid
        self._scope = runner.scope(laid.rank)
        self._first = runner.first(self._scope)
        self._asked_s: float | None = None
        self._killed = False
        self._told = False
        self._returned = False
        self._entered = False
        self._index = -1
        self._fate = draw_fate(world)
        self._task: asyncio.Task[None] | None = None
        world.mates(runner.run, self._scope).append(self)

    @property
    def held(self) -> Held:
        """What the planner needs to know."""
        return Held(
            attempt=self.attempt,
            rank=self.rank,
            life=self._laid.life,
            slot=self._laid.its_slot,
            asked_s=self._asked_s,
            killed=self._killed,
        )

    @property
    def beat(self) -> RankBeat:
        """It at a glance."""
        phase: RankPhase = "exited" if self.over else "running" if self._entered else "waiting"
        return RankBeat(rank=self.rank, phase=phase, index=self._index)

    def begin(self) -> None:
        """Start it."""
        self._task = self._runner.process.task(self._live(), f"rank {self.rank}")

    def vanish(self) -> None:
        """End with its runner, unheard."""
        self.over = True

    def end(self, *, kill: bool) -> None:
        """Be asked to end, or be made to."""
        loop = asyncio.get_running_loop()
        self._asked_s = loop.time() if self._asked_s is None else self._asked_s
        if kill:
            self._killed = True
            loop.call_later(0.001, self._ended, None, SIGKILL)
        elif not self._world.net.happens(self._world.scenario.ranks.stubborn):
            loop.call_later(self._world.dice.uniform(*HEEDS_S), self._ended, None, SIGTERM)

    def fail(self, trouble: RankTrouble) -> None:
        """Fail here and now."""
        if not self.over and not self._told:
            self._fails(trouble)

    def break_off(self, mate: int) -> None:
        """Notice that another rank is gone: a collective breaks."""
        if not self.over and not self._told and self._asked_s is None:
            self._fail("peer", "ConnectionError", f"rank {mate} is gone")
            self._ended(1, None)

    # --- its life

    async def _live(self) -> None:
        world, dice, fate = self._world, self._world.dice, self._fate
        await asyncio.sleep(dice.uniform(*LOAD_S))
        if fate.trouble == "load":
            self._fails("load")
            return
        runner = self._runner
        runner.say(RankStarted, self.attempt, rank=self.rank, life=self._laid.life, pid=runner.pid, next_port=4000)
        if not await self._meets(HUB_CONNECT_TIMEOUT_S):
            world.truth.harm(Harm(runner.run, "cut", self.attempt, runner.node, self.rank))
            self._fail("rendezvous", "RendezvousError", f"{runner.hub(self._scope)} cannot be reached")
            self._ended(1, None)
            return
        await world.all_loaded(runner.run, self._scope)
        self._entered = True
        world.truth.enters(runner.run, self.attempt, self.rank, self._laid.life)
        for index in range(fate.reports):
            await asyncio.sleep(dice.uniform(*world.scenario.ranks.step_s))
            await self._meets()
            if fate.trouble is not None and index == fate.fails_at:
                break
            self._index = self._first + index
            runner.say(
                Reported,
                self.attempt,
                rank=self.rank,
                life=self._laid.life,
                index=self._index,
                metrics={"loss": round(1 / (index + 1), 3)} if self.rank == 0 else None,
            )
        if fate.trouble is not None:
            self._fails(fate.trouble)
            if fate.trouble == "hang":
                await asyncio.Event().wait()
            return
        self._told = self._returned = True
        reports = self._first + fate.reports
        runner.say(RankReturned, self.attempt, rank=self.rank, life=self._laid.life, reports=reports)
        self._ended(0, None)

    async def _meets(self, timeout_s: float = math.inf) -> bool:
        """Wait until the ranks' meeting point can be reached: what is sent over a cut waits in its connection."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self._world.meet(self._runner.node, self._runner.hub(self._scope)):
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(RETRY_S)
        return True

    def _fails(self, trouble: RankTrouble) -> None:
        self._world.truth.harm(Harm(self._runner.run, "rank", self.attempt, self._runner.node, self.rank))
        match trouble:
            case "user" | "load":
                self._fail(trouble, "RuntimeError", f"boom {self.rank}")
                self._ended(1, None)
            case "exit":
                self._ended(3, None)
            case "vanish":
                self._ended(0, None)
            case "signal":
                self._ended(None, SIGSEGV)
            case "oom":
                self._ended(None, SIGKILL, oom=True)
            case "hang":
                return
        for mate in self._world.mates(self._runner.run, self._scope):
            if mate is not self and self._world.net.happens(MATES_NOTICE):
                wait_s = self._world.dice.uniform(*MATES_NOTICE_S)
                asyncio.get_running_loop().call_later(wait_s, mate.break_off, self.rank)

    def _fail(self, kind: FailureKind, name: str, message: str) -> None:
        self._told = True
        error = {"type": name, "message": message, "kind": kind}
        self._runner.say(RankFailed, self.attempt, rank=self.rank, life=self._laid.life, error=error)

    def _ended(self, code: int | None, signal: int | None, *, oom: bool = False) -> None:
        if self.over or not self._runner.alive:
            return
        self.over = True
        if self._task is not None:
            self._task.cancel()
        self._runner.say(
            RankExited,
            self.attempt,
            rank=self.rank,
            life=self._laid.life,
            exit_code=code,
            signal=signal,
            asked=self._asked_s is not None and (code is None or not self._told),
            returned=self._returned,
            oom=oom,
        )
        self._runner.changed()


def draw_fate(world: World) -> Fate:
    """Draw what a life is to bring; once all is calm, no trouble."""
    dice, ranks = world.dice, world.scenario.ranks
    reports = dice.randint(*ranks.reports)
    fails = not world.is_calm and dice.random() < world.fails
    return Fate(reports, dice.choice(ranks.of) if fails else None, dice.randint(0, reports))
