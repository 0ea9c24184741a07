"""Several controllers share the runs: who dies, stands still or stops, and what becomes of its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import msgspec
import pytest

from runfold.controller.leases import SETTLED_AFTER_S, NameTaken
from runfold.events.entry import hash_entry
from runfold.events.fold import fold_all
from runfold.events.job import encode_job
from runfold.events.limits import JOBS_ACK_WAIT_S, LEASE_TTL_S
from runfold.events.transitions import AttemptStarted, ControllerChanged, RunAccepted
from support.hosting import Group, Hosted, assignment, chained, heads_acknowledged, hosting, job, shown, status, taken
from support.memory_ports import MemoryRun, MemoryWorld
from support.virtual import run_virtual
from support.waiting import until
from support.wire import Wire

TAKEN_WITHIN_S = LEASE_TTL_S + 0.5


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


def now() -> float:
    return asyncio.get_running_loop().time()


def controllers(one: MemoryRun) -> list[tuple[int, str]]:
    """Return who had the run, by epoch."""
    changed = [item for entry in one.log.entries for item in entry.transitions if isinstance(item, ControllerChanged)]
    return [(item.epoch, item.controller) for item in changed]


async def settled() -> None:
    await asyncio.sleep(2 * SETTLED_AFTER_S)


def test_another_has_the_run_soon_after_its_controller_died() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world, "ctl-0") as first:
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            async with hosting(world, "ctl-1"):
                await settled()
                await first.die()
                died = now()
                group.reports(3)
                await shown(one, lambda status: status.epoch == 2)
                assert now() - died <= TAKEN_WITHIN_S
                group.reports(3)
                await group.finishes()
                await until(lambda: not world.owners.values)
        assert controllers(one) == [(1, "ctl-0"), (2, "ctl-1")]
        state = fold_all(chained(one))
        assert (state.terminal, state.reports, state.attempt) == (True, 6, 1)
        heads_acknowledged(one.happened)

    run(story())


def test_a_controller_that_stops_hands_its_runs_over_at_once() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world, "ctl-0") as first:
            runs = [await taken(world, job(f"digits-{k}")) for k in range(5)]
            async with hosting(world, "ctl-1"):
                await settled()
                await first.stop()
                stopped = now()
                for one in runs:
                    await shown(one, lambda status: status.epoch == 2)
                assert now() - stopped < LEASE_TTL_S / 2
        assert {tuple(controllers(one)) for one in runs} == {((1, "ctl-0"), (2, "ctl-1"))}

    run(story())


def test_nobody_takes_over_before_leases_mean_anything() -> None:
    """A controller that has just connected does not know yet who lives."""

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world, "ctl-0") as first:
            one = await taken(world, job())
            await first.die()
        world.leases.forget()
        began = now()
        async with hosting(world, "ctl-1"):
            await shown(one, lambda status: status.epoch == 2)
            assert SETTLED_AFTER_S <= now() - began <= SETTLED_AFTER_S + TAKEN_WITHIN_S

    run(story())


def test_its_own_former_runs_a_controller_takes_at_once() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world, "ctl-0") as first:
            one = await taken(world, job())
            await first.die()
        began = now()
        async with hosting(world, "ctl-0"):
            await shown(one, lambda status: status.epoch == 2)
            assert now() - began < 0.1

    run(story())


def test_an_outage_of_the_broker_moves_no_run() -> None:
    """Leases are forgotten, nobody can renew for ten seconds: whoever had a run keeps it and goes on."""

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world, "ctl-0"), hosting(world, "ctl-1"):
            one = await taken(world, job())
            owner = status(one).controller
            await settled()
            began, tries = now(), len(one.log.tried)
            one.log.plan = {tries + k: "mute" for k in range(15)}
            world.leases.away = 10_000
            world.leases.forget()
            pool = asyncio.create_task(Group(one).pool.join("p1"))
            await asyncio.sleep(10)
            world.leases.away = 0
            one.log.plan = {}
            await pool
            await settled()
            assert now() - began > 10
            assert (status(one).epoch, status(one).controller) == (1, owner)

    run(story())


def test_a_lease_lost_by_its_living_holder_costs_no_more_than_the_run() -> None:
    """Nobody heard its renewals, say: another takes the run, and the first lets go of it by itself."""

    async def story() -> None:
        world = MemoryWorld()
        wire = Wire(world)
        async with hosting(wire, "ctl-0"):
            one = await taken(world, job())
            async with hosting(world, "ctl-1"):
                await settled()
                wire.fault = lambda _, what: "mute" if what == "renew" else None
                await shown(one, lambda status: status.epoch == 2)
                await until(lambda: [task.get_name() for task in asyncio.all_tasks()].count("run digits-1") == 1)
                group = Group(one)
                await group.trains()
                await group.finishes()
        assert controllers(one)[-1] == (2, "ctl-1")
        heads_acknowledged(one.happened)

    run(story())


def test_a_rival_that_wrote_without_owning_the_run_does_not_keep_it() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            last, data = one.log.entries[-1], one.log.log.messages[-1]
            rival = msgspec.structs.replace(last, n=last.n + 1, prev=hash_entry(data), inputs=(), transitions=())
            world.store.put("digits-1", msgspec.json.encode(rival))
            group = Group(one)
            await group.trains()
            assert status(one).epoch == 2
            await group.finishes()
        assert controllers(one) == [(1, "ctl-0"), (2, "ctl-0")]

    run(story())


def test_a_key_that_is_gone_is_set_again() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            await taken(world, job())
            world.owners.values.clear()
            await until(lambda: world.owners.values == {"digits-1": "ctl-0"})

    run(story())


def test_a_run_that_a_dead_controller_only_claimed_is_begun_by_its_job() -> None:
    async def story() -> None:
        world = MemoryWorld()
        world.owners.values["digits-1"] = "ctl-9"
        async with hosting(world):
            await until(lambda: not world.owners.values)
            one = await taken(world, job())
            assert controllers(one) == [(1, "ctl-0")]

    run(story())


def test_two_controllers_of_one_name_are_found_out() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world, "ctl-0") as first:
            async with hosting(world, "ctl-0"):
                with pytest.raises(NameTaken, match="ctl-0"):
                    await first.task
                await settled()

    run(story())


def test_many_runs_of_a_dead_controller_are_shared_among_those_left() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world, "ctl-0") as first:
            runs = [await taken(world, job(f"digits-{k}")) for k in range(20)]
            async with hosting(world, "ctl-1"), hosting(world, "ctl-2"):
                await settled()
                await first.die()
                for one in runs:
                    await shown(one, lambda status: status.epoch == 2)
                await settled()
        for one in runs:
            assert [epoch for epoch, _ in controllers(one)] == [1, 2]

    run(story())


@pytest.mark.parametrize("first_call", range(4))
def test_a_controller_that_stood_still_at_any_moment_is_fenced(first_call: int) -> None:
    """Stopped at its n-th call to the broker, for every n, and woken once another has finished the run."""

    async def story(call: int) -> bool:
        world = MemoryWorld()
        world.jobs.ack_wait_s = JOBS_ACK_WAIT_S
        one = world.of("digits-1")
        wire = Wire(world)
        sleeper = Hosted(wire, "ctl-0")
        await sleeper.ready()
        wire.still_from = len(wire.calls) + call
        world.jobs.publish(encode_job(job()))
        life = asyncio.create_task(lives(one))
        still = asyncio.create_task(wire.stands_still.wait())
        await asyncio.wait({life, still}, return_when=asyncio.FIRST_COMPLETED)
        stood_still = wire.stands_still.is_set()
        async with hosting(world, "ctl-1"):
            await life
            await until(lambda: not world.owners.values)
            shown_last = (one.assignment.data, one.status.data, one.log.log.messages)
            wire.wake()
            await settled()
            # What it still had to say was refused, or said the same again.
            assert (one.assignment.data, one.status.data, one.log.log.messages) == shown_last
            assert not world.owners.values
            await sleeper.stop()
        still.cancel()
        once(one)
        return not stood_still

    call = first_call
    while not run_virtual(story(call)):
        call += 4
    assert call > 20


async def lives(one: MemoryRun) -> None:
    """Train the run to its end."""
    await until(lambda: one.assignment.data is not None)
    group = Group(one)
    await group.trains()
    group.reports(2)
    await group.finishes()


def once(one: MemoryRun) -> None:
    """Everything happened, and once."""
    transitions = [item for entry in chained(one) for item in entry.transitions]
    assert len([item for item in transitions if isinstance(item, RunAccepted)]) == 1
    assert len([item for item in transitions if isinstance(item, AttemptStarted)]) == 1
    assert fold_all(one.log.entries).reports == 2
    assert (assignment(one).want, status(one).state) == ("gone", "finished")
    heads_acknowledged(one.happened)


def test_a_status_that_was_lost_with_its_broker_after_the_end_is_shown_again() -> None:
    """Statuses are not synced: the last of a run that is over may be gone, and nobody is left to say it again."""

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            two = await taken(world, job("digits-2"))
            group = Group(one)
            await group.trains()
            running = one.status.data
            await group.finishes()
            await shown(one, lambda status: status.state == "finished")
            await until(lambda: "digits-1" not in world.owners.values)
            entries = len(one.log.entries)
            # The broker dies, with the leases and with what it had not written of both.
            world.leases.forget()
            one.status.data, two.status.data = running, None
            await shown(one, lambda status: status.state == "finished")
            await shown(two, lambda status: status.state == "scheduling")
            await until(lambda: "digits-1" not in world.owners.values)
            assert len(one.log.entries) == entries
            one.status.data = None
        async with hosting(world, "ctl-1"):
            await shown(one, lambda status: status.state == "finished")
            await until(lambda: "digits-1" not in world.owners.values)
        assert fold_all(chained(one)).epoch == 1

    run(story())


def test_a_run_whose_key_was_lost_is_looked_after() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as first:
            one = await taken(world, job())
            await first.die()
        world.owners.values.clear()
        async with hosting(world, "ctl-1"):
            await shown(one, lambda status: status.epoch == 2)
            assert world.owners.values["digits-1"] == "ctl-1"
            await Group(one).trains()

    run(story())
