"""A controller that dies and starts again, at every moment: the run goes on from its log, and nothing happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise

import msgspec
import pytest

from runfold.events.assignment import Assignment
from runfold.events.conclusions import ControllerStarted
from runfold.events.entry import hash_entry
from runfold.events.fold import fold_all
from runfold.events.job import encode_job
from runfold.events.limits import TAKEOVER_GAP_MAX_S
from runfold.events.transitions import AttemptStarted, ControllerChanged, RunAccepted, StateChanged
from support.hosting import Group, assignment, hosting, job, shown, status, taken
from support.memory_ports import MemoryRun, MemoryWorld
from support.virtual import run_virtual
from support.waiting import until


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


def changes(one: MemoryRun) -> list[ControllerChanged]:
    """Return every change of controller in the log."""
    return [item for entry in one.log.entries for item in entry.transitions if isinstance(item, ControllerChanged)]


def test_a_restart_refolds_and_goes_on_without_a_new_attempt() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as first:
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            group.reports(2)
            await shown(one, lambda now: now.ranks[0].index == 1)
            await first.die()
        count = len(one.log.entries)
        async with hosting(world):
            now = await shown(one, lambda now: now.epoch == 2)
            assert (now.state, now.attempt, now.ranks[0].index) == ("running", 1, 1)
            assert (assignment(one).epoch, assignment(one).n, assignment(one).want) == (2, count, "train")
            group.reports(3)
            await group.finishes()
        takeover = one.log.entries[count]
        assert [type(item) for item in takeover.inputs] == [ControllerStarted]
        assert [type(item) for item in takeover.transitions] == [ControllerChanged]
        assert (takeover.epoch, takeover.t) == (2, one.log.entries[count - 1].t)
        assert not world.owners.values

    run(story())


@pytest.mark.parametrize(("away_s", "expected_s"), [(7.0, 7.0), (10_000.0, TAKEOVER_GAP_MAX_S)])
def test_the_time_without_a_controller_counts_up_to_a_limit(away_s: float, expected_s: float) -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as first:
            one = await taken(world, job())
            await first.die()
        before = one.log.entries[-1].t
        await asyncio.sleep(away_s)
        async with hosting(world):
            await shown(one, lambda now: now.epoch == 2)
            await Group(one).pool.join()
        repeated, after = (entry.t for entry in one.log.entries[-2:])
        assert repeated == before
        assert before + expected_s <= after < before + expected_s + 2

    run(story())


def test_what_was_said_meanwhile_is_folded() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as first:
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            await first.die()
        group.reports(5)
        for subject, data in group.runner.said:
            one.inbox.publish(subject, data)
        async with hosting(world):
            await shown(one, lambda now: now.ranks[0].index == 4)
            await group.finishes()
        assert fold_all(one.log.entries).reports == 5

    run(story())


def test_an_inbox_made_anew_loses_and_doubles_nothing() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as first:
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            await first.die()
        one.inbox.identity, one.inbox.stored, one.inbox.last_sequence = "inbox-2", [], 0
        for subject, data in group.runner.said:
            one.inbox.publish(subject, data)
        async with hosting(world):
            group.reports(1)
            now = await shown(one, lambda now: now.ranks[0].index == 0)
            assert now.dropped.stale == now.dropped.foreign == 0
        assert one.log.entries[-1].cursor == ("inbox-2", one.inbox.last_sequence)

    run(story())


def test_an_orderly_stop_leaves_the_run_to_the_next_start() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
        assert world.owners.values == {"digits-1": "ctl-0"}
        count = len(one.log.entries)
        async with hosting(world):
            await shown(one, lambda now: now.epoch == 2)
        assert len(one.log.entries) == count + 1

    run(story())


def test_a_stop_while_the_broker_is_away_is_bounded() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            one.log.plan = {len(one.log.tried) + k: "mute" for k in range(1000)}
            Group(one).pool.run.inbox.publish("request.join", b'{"id": "p", "source": "pool-local", "boot": "p"}')
            await until(lambda: len(one.log.tried) > 3)
            started_s = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started_s < 10
        one.log.plan = {}
        async with hosting(world):
            await until(lambda: any(given.source == "pool-local" for given in assignment(one).joined))

    run(story())


def test_another_controllers_runs_are_left_alone() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world, "ctl-0") as first:
            one = await taken(world, job())
            await first.die()
        count = len(one.log.entries)
        async with hosting(world, "ctl-1"):
            other = await taken(world, job("digits-2"))
            assert status(other).controller == "ctl-1"
        assert len(one.log.entries) == count
        assert world.owners.values == {"digits-1": "ctl-0", "digits-2": "ctl-1"}

    run(story())


def test_a_run_that_had_ended_is_shown_to_its_end_and_freed() -> None:
    """The controller died between the terminal entry and the deletion of the OWNERS key."""

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            await group.finishes()
            await until(lambda: not world.owners.values)
        final, entries = one.assignment.data, list(one.log.log.messages)
        one.assignment.data = one.status.data = None
        world.owners.values["digits-1"] = "ctl-0"
        async with hosting(world):
            await until(lambda: not world.owners.values)
        assert one.assignment.data == final
        assert status(one).terminal
        assert one.log.log.messages == entries

    run(story())


@pytest.mark.parametrize("keeper", ["assignment", "status"])
def test_a_log_that_lost_its_end_is_quarantined(keeper: str) -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as first:
            one = await taken(world, job())
            await Group(one).trains()
            await first.die()
        world.store.cut(3)
        board = one.status if keeper == "assignment" else one.assignment
        if keeper == "status":
            board.data = None
        before = assignment(one) if one.assignment.data else None
        async with hosting(world):
            marked = await shown(one, lambda now: now.quarantined is not None)
            assert "the log ends at entry 2" in (marked.quarantined or "")
            assert marked.state == "running"
            assert len(one.log.log.messages) == 3
            assert before is None or assignment(one) == before
            await taken(world, job("digits-2"))

    run(story())


def test_an_entry_that_was_rewritten_is_quarantined() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as first:
            one = await taken(world, job())
            await first.die()
        (data,) = one.log.log.messages
        world.store.rewrite(1, data.replace(b"examples.digits:train", b"examples.digits:trick"))
        async with hosting(world):
            marked = await shown(one, lambda now: now.quarantined is not None)
            assert "entry 0 is not the one that the assignment was made of" in (marked.quarantined or "")

    run(story())


def test_a_controller_killed_at_every_moment_does_everything_once() -> None:
    """Ended after 1, 2, 3, … turns of the event loop from the job's publication on, then started again."""

    async def story(turns: int) -> bool:
        world = MemoryWorld()
        one = world.of("digits-1")
        async with hosting(world) as first:
            sequence = world.jobs.publish(encode_job(job()))
            for _ in range(turns):
                await asyncio.sleep(0)
            done = world.jobs.answered == [sequence] and one.status.data is not None
            await first.die()
        if not world.jobs.answered:
            world.jobs.publish(encode_job(job()), again=sequence)
        async with hosting(world):
            await until(lambda: one.status.data is not None)
            await until(lambda: world.jobs.answered == [sequence])
            group = Group(one)
            await group.trains()
            await group.finishes()
            await until(lambda: not world.owners.values)
        transitions = [item for entry in one.log.entries for item in entry.transitions]
        assert len([item for item in transitions if isinstance(item, RunAccepted)]) == 1
        assert len([item for item in transitions if isinstance(item, AttemptStarted)]) == 1
        assert fold_all(one.log.entries).terminal
        assert not world.jobs.refusals
        return done

    turns = 0
    while not run_virtual(story(turns)):
        turns += 1
    assert turns > 5


def test_a_restart_while_a_run_restarts_spends_nothing_twice() -> None:
    async def story(turns: int) -> bool:
        world = MemoryWorld()
        async with hosting(world) as first:
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            group.fails()
            for _ in range(turns):
                await asyncio.sleep(0)
            done = assignment(one).attempt == 2
            await first.die()
        async with hosting(world):
            await group.starts(2)
            assert status(one).budgets["worker"].spent == 1
            await group.finishes(2)
            now = await shown(one, lambda now: now.terminal)
            assert now.state == "finished"
        edges = [
            (i.from_state, i.to_state) for e in one.log.entries for i in e.transitions if isinstance(i, StateChanged)
        ]
        assert edges.count(("running", "restarting")) == 1
        return done

    turns = 0
    while not run_virtual(story(turns)):
        turns += 1
    assert turns > 2


def test_every_assignment_shown_is_newer_than_the_one_before() -> None:
    async def story() -> None:
        world = MemoryWorld()
        one = world.of("digits-1")
        for life in range(3):
            async with hosting(world) as hosted:
                if life == 0:
                    await taken(world, job())
                await shown(one, lambda now, epoch=life + 1: now.epoch == epoch)  # type: ignore[misc]  # bound here
                await hosted.die()
        shown_ones = [msgspec.json.decode(data, type=Assignment) for data in one.happened.of("assignment")]
        for before, after in pairwise(shown_ones):
            assert after.newer_than(before)
        assert [changed.epoch for changed in changes(one)] == [1, 2, 3]
        assert hash_entry(one.log.log.messages[-1]) == shown_ones[-1].hash

    run(story())
