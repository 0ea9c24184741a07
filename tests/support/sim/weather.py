"""What goes wrong, and when: each trouble of a scenario comes and goes by itself, until all is calm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from runfold.events.config import Timeouts
from support.sim.archiver import ArchiverSeat
from support.sim.machines import ControllerSeat, PoolSeat, User
from support.sim.net import BROKER
from support.sim.process import Process
from support.sim.runner import SIGKILL, SimRunner
from support.sim.scenario import Spell, Trouble
from support.sim.traces import Fleet, draw_failures, read_changes
from support.sim.truth import Death, Harm
from support.sim.world import USER, World

OF_THE_MIX: Final = Spell(every_s=1.0, lasts_s=(0.5, 8.0))
LOST_AFTER_S: Final = Timeouts().lost_after_s
HOUR_S: Final = 3600.0
STRAY: Final = b'{"v": 1, "run": "somebody", "n": 4, "prev": "0"}'


class Weather:
    """The troubles of a world. `calm` ends all of them, and starts again whoever is dead."""

    def __init__(
        self, world: World, controllers: list[ControllerSeat], pool: PoolSeat, user: User, archiver: ArchiverSeat
    ) -> None:
        self._world, self._controllers, self._pool, self._user = world, controllers, pool, user
        self._archiver = archiver
        self._process = world.process("weather")
        self._mends: dict[int, Callable[[], None]] = {}
        self._mends_count = 0
        self._acts: dict[Trouble, Callable[[Spell], Coroutine[None, None, None]]] = {
            "controller_dies": self._controller_dies,
            "controller_stops": self._controller_stops,
            "controller_sleeps": self._controller_sleeps,
            "controller_is_cut_off": lambda spell: self._cut_off(spell, self._some_controller().name),
            "broker_dies": self._broker_dies,
            "broker_is_slow": self._broker_is_slow,
            "broker_fails": self._broker_fails,
            "disk_is_full": self._disk_is_full,
            "inbox_is_lost": self._inbox_is_lost,
            "supervisor_dies": self._supervisor_dies,
            "supervisor_is_cut_off": self._supervisor_is_cut_off,
            "rank_fails": self._rank_fails,
            "runner_dies": self._runner_dies,
            "runner_is_cut_off": lambda spell: self._cut_off(spell, self._some_node()),
            "node_dies": self._node_dies,
            "nodes_are_cut_off": self._nodes_are_cut_off,
            "everybody_is_cut_off": self._everybody_is_cut_off,
            "clock_jumps": self._clock_jumps,
            "stray_in_log": self._stray_in_log,
            "log_is_damaged": self._log_is_damaged,
            "archive_fails": self._archive_fails,
            "archiver_dies": self._archiver_dies,
            "capacity_changes": self._capacity_changes,
            "user_is_cut_off": lambda spell: self._cut_off(spell, USER),
        }

    def begin(self) -> None:
        """Let trouble come."""
        if self._world.scenario.trace:
            changes, faster = read_changes(self._world.scenario.trace, self._world.scenario.calm_s)
            fleet = Fleet(self._world, self._pool, changes)
            self._process.spawn(fleet.come_and_go(), "fleet")
            self._process.spawn(self._mix(faster), "mix")
        for trouble, spell in self._world.scenario.trouble.items():
            self._process.spawn(self._haunt(trouble, spell), trouble)

    def calm(self) -> None:
        """End all trouble."""
        world = self._world
        world.is_calm = True
        self._process.kill()
        for mend in list(self._mends.values()):
            mend()
        self._mends.clear()
        world.net.calm()
        for controller in self._controllers:
            controller.kept = True
            controller.start()
        self._pool.start()
        if self._world.has_archive:
            self._archiver.start()
        world.truth.note("all is calm")

    async def _haunt(self, trouble: Trouble, spell: Spell) -> None:
        dice = self._world.dice
        await asyncio.sleep(spell.from_s)
        for _ in range(spell.times):
            await asyncio.sleep(dice.expovariate(1.0 / spell.every_s))
            self._world.truth.note(f"trouble: {trouble}")
            self._world.net.steps += 1
            await self._acts[trouble](spell)

    async def _mix(self, faster: float) -> None:
        """Let fail what fails in large training, as often as it does there."""
        for wait_s, trouble in draw_failures(self._world.dice, faster):
            await asyncio.sleep(wait_s)
            self._world.truth.note(f"trouble: {trouble}")
            self._process.spawn(self._acts[trouble](OF_THE_MIX), trouble)

    async def _lasts(self, spell: Spell, mend: Callable[[], None]) -> None:
        """Wait for as long as a trouble lasts, and mend it; all is mended when calm comes first."""
        await self._lasts_so_long(self._world.dice.uniform(*spell.lasts_s), mend)

    async def _lasts_so_long(self, lasts_s: float, mend: Callable[[], None]) -> None:
        self._mends_count += 1
        key = self._mends_count
        self._mends[key] = mend
        await asyncio.sleep(lasts_s)
        if self._mends.pop(key, None) is not None:
            mend()

    # --- controllers

    def _some_controller(self) -> ControllerSeat:
        return self._world.dice.choice(self._controllers)

    async def _controller_dies(self, spell: Spell) -> None:
        seat = self._some_controller()
        self._world.truth.note(f"{seat.name} dies")
        owned = tuple(run for run, owner in self._world.broker.owners().items() if owner == seat.name)
        self._world.truth.deaths.append(Death(self._world.now, seat.name, owned))
        seat.die()
        await self._lasts(spell, seat.start)

    async def _controller_stops(self, spell: Spell) -> None:
        seat = self._some_controller()
        self._world.truth.note(f"{seat.name} is to stop")
        seat.stop()
        await self._lasts(spell, seat.start)

    async def _controller_sleeps(self, spell: Spell) -> None:
        process = self._some_controller().process
        if process is not None and process.alive:
            self._world.truth.note(f"{process.boot} sleeps")
            process.sleep()
            await self._lasts(spell, process.wake)

    # --- the broker

    async def _broker_dies(self, spell: Spell) -> None:
        if BROKER in self._world.net.down:
            return
        self._world.broker.die()
        await self._lasts(spell, self._world.broker.come_back)

    async def _broker_is_slow(self, spell: Spell) -> None:
        disk = self._world.broker.disk
        disk.slow_s = self._world.dice.choice((0.1, 1.0, 5.0))
        await self._lasts(spell, lambda: setattr(disk, "slow_s", 0.0))

    async def _broker_fails(self, spell: Spell) -> None:
        disk = self._world.broker.disk
        self._nobody_can_speak()
        disk.fails = self._world.dice.choice((0.1, 0.5, 1.0))
        await self._lasts(spell, lambda: setattr(disk, "fails", 0.0))

    async def _disk_is_full(self, spell: Spell) -> None:
        """There is room again only once the broker was started again."""
        broker = self._world.broker
        self._nobody_can_speak()
        broker.full = True
        await self._lasts(spell, self._room)

    def _nobody_can_speak(self) -> None:
        """Who has to be heard in time may rightly be late: the controller cannot see what keeps others from it."""
        for run in self._user.jobs:
            self._world.truth.harm(Harm(run, "late", 0))

    def _room(self) -> None:
        broker = self._world.broker
        broker.full = False
        if BROKER not in self._world.net.down:
            broker.die()
            broker.come_back()

    async def _inbox_is_lost(self, spell: Spell) -> None:
        run = self._world.dice.choice(list(self._user.jobs))
        self._world.broker.lose_inbox(run)

    async def _archive_fails(self, spell: Spell) -> None:
        stores = [self._archiver.store(run) for run in self._user.jobs]
        for store in stores:
            store.fails = True

        def mend() -> None:
            for store in stores:
                store.fails = False

        await self._lasts(spell, mend)

    async def _archiver_dies(self, spell: Spell) -> None:
        """Let it die at one of its next writes, or where it stands."""
        self._world.archiver_mortality = 0.3
        await self._lasts(spell, lambda: setattr(self._world, "archiver_mortality", 0.0))
        self._archiver.die()
        self._archiver.start()

    # --- the pool

    async def _supervisor_dies(self, spell: Spell) -> None:
        self._nobody_can_speak()
        self._pool.die()
        await self._lasts(spell, self._pool.start)

    async def _supervisor_is_cut_off(self, spell: Spell) -> None:
        self._nobody_can_speak()
        await self._cut_off(spell, "pool")

    def _living(self) -> list[SimRunner]:
        return [runner for runner in self._world.truth.runners if runner.alive]

    async def _runner_dies(self, spell: Spell) -> None:
        if living := self._living():
            self._world.dice.choice(living).die(SIGKILL)

    async def _rank_fails(self, spell: Spell) -> None:
        ranks = [rank for runner in self._living() for rank in runner.ranks.values() if not rank.over]
        if ranks:
            self._world.dice.choice(ranks).fail(self._world.dice.choice(self._world.scenario.ranks.of))

    def _some_node(self) -> str:
        return self._world.dice.choice(list(self._world.nodes))

    async def _node_dies(self, spell: Spell) -> None:
        node = self._some_node()
        for runner in self._living():
            if runner.node == node:
                runner.die(SIGKILL)

    async def _capacity_changes(self, spell: Spell) -> None:
        """Let a node have other slots than it is said to have, for a while."""
        name = self._some_node()
        node, slots = self._world.nodes[name], self._world.dice.randint(0, self._world.slots)
        self._world.truth.note(f"{name} has {slots} slots")
        if slots < node.slots:
            for run in self._user.jobs:
                self._world.truth.harm(Harm(run, "notice", 0, name))
                if "supervisor_dies" in self._world.scenario.trouble:
                    # Of one that dies while it takes places an heir knows no more than that runners are gone.
                    self._world.truth.harm(Harm(run, "runner", 0, name))
        self._pool.node_has(name, slots)
        await self._lasts(spell, lambda: self._pool.node_has(name, self._world.slots))

    # --- the net, the clocks

    async def _cut_off(self, spell: Spell, name: str) -> None:
        net, broker = self._world.net, self._world.broker
        self._world.truth.note(f"{name} is cut off")
        lasts_s = self._world.dice.uniform(*spell.lasts_s)
        if lasts_s >= LOST_AFTER_S and name in self._world.nodes:
            for run in self._user.jobs:
                self._world.truth.harm(Harm(run, "silent", 0, name))
        net.cut(name, BROKER)
        broker.disturb()
        await self._lasts_so_long(lasts_s, lambda: net.mend(name, BROKER))

    async def _nodes_are_cut_off(self, spell: Spell) -> None:
        """Let two machines not see each other, while both see the broker."""
        net, nodes = self._world.net, list(self._world.nodes)
        if len(nodes) < 2:
            return
        one, other = self._world.dice.sample(nodes, 2)
        self._world.truth.note(f"{one} and {other} are cut off from each other")
        net.cut(one, other)
        await self._lasts(spell, lambda: net.mend(one, other))

    async def _everybody_is_cut_off(self, spell: Spell) -> None:
        net, broker = self._world.net, self._world.broker
        names = [*(seat.name for seat in self._controllers), "pool", *self._world.nodes]
        cut = [name for name in names if self._world.dice.random() < 0.5]
        self._world.truth.note(f"{cut} are cut off")
        for name in cut:
            net.cut(name, BROKER)
        broker.disturb()

        def mend() -> None:
            for name in cut:
                net.mend(name, BROKER)

        await self._lasts(spell, mend)

    async def _clock_jumps(self, spell: Spell) -> None:
        """Set the time of day of the broker, or of a controller, an hour off."""
        jump_s = self._world.dice.choice((-HOUR_S, HOUR_S))
        process: Process | None = self._some_controller().process
        if self._world.dice.random() < 0.5 or process is None:
            self._world.broker.clock_s += jump_s
        else:
            process.wall_s += jump_s

    # --- damage

    async def _stray_in_log(self, spell: Spell) -> None:
        run = self._world.dice.choice(list(self._user.jobs))
        self._world.broker.memory.store.put(run, STRAY)

    async def _log_is_damaged(self, spell: Spell) -> None:
        """Flip a bit of an entry that stands."""
        dice, truth = self._world.dice, self._world.truth
        run = dice.choice(list(self._user.jobs))
        stored = self._world.broker.memory.store.of(run)
        if len(stored) < 2:
            return
        victim = dice.choice(stored[:-1])
        place = dice.randrange(len(victim.data))
        flipped = bytes(
            (*victim.data[:place], victim.data[place] ^ (1 << dice.randrange(7)), *victim.data[place + 1 :])
        )
        self._world.broker.memory.store.rewrite(victim.sequence, flipped)
        truth.damaged.add(run)
        truth.note(f"the log of {run} is damaged at sequence {victim.sequence}")
