"""Supervisors that die: the next one finds what was left, by place, process id and start time, and loses nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil

from runfold.events.config import Timeouts
from runfold.events.facts import (
    Placed,
    PreemptionNoticed,
    RankExited,
    RankReturned,
    Released,
    Reported,
    RunnerLost,
    RunnerReady,
)
from runfold.workers.places import Place, PlaceLock, find_places
from runfold.workers.processes import start_time
from support.processes import alive, all_gone, suspended
from support.waiting import PATIENCE_S, until, within

if TYPE_CHECKING:
    from support.supervisors import Machine

UNTIL_TOLD = """
import os, pathlib, time
def train():
    step = 0
    while not pathlib.Path("go").exists():
        runfold.report({"step": step, "pid": os.getpid()})
        step += 1
        time.sleep(0.05)
    runfold.barrier()
    return runfold.get_context().get_attempt()
"""


async def test_an_heir_adopts_the_runner_and_no_rank_notices(machine: Machine) -> None:
    first = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD)
    run.train()
    await run.heard(Reported, rank=1)
    runner = machine.runner()
    await machine.kill(first)
    reports = len(run.of(Reported))
    await run.heard(Reported, count=reports + 10)
    heir = await machine.supervisor()
    await until(lambda: run.joined("pool-local") == 2)
    (machine.folder / "go").touch()
    await run.heard(RankReturned, count=2)
    assert alive(runner)
    assert not run.of(RunnerLost)
    assert {fact.attempt for fact in run.of(RankReturned)} == {1}
    assert len(run.of(RunnerReady)) == len(run.of(Placed)) == 1
    run.stop()
    await run.heard(Released, incarnation=2)
    assert not alive(runner)
    assert not find_places(machine.places)
    await machine.stop(heir)


async def test_an_heir_may_be_killed_in_its_turn(machine: Machine) -> None:
    first = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD)
    run.train()
    await run.heard(Reported, rank=1)
    await machine.kill(first)
    for incarnation in (2, 3):
        heir = await machine.supervisor()
        await until(lambda: run.joined("pool-local") == incarnation)  # noqa: B023  # awaited before it changes
        if incarnation == 2:
            await machine.kill(heir)
    (machine.folder / "go").touch()
    await run.heard(RankReturned, count=2)
    assert not run.of(RunnerLost)


async def test_the_death_of_an_adopted_runner_is_told_without_a_guess_at_how(machine: Machine) -> None:
    first = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD)
    run.train()
    await run.heard(Reported, rank=1)
    family = machine.below(machine.runner())
    await machine.kill(first)
    await machine.supervisor()
    await until(lambda: run.joined("pool-local") == 2)
    machine.runner().kill()
    lost = await run.heard(RunnerLost)
    assert (lost.node, lost.exit_code, lost.signal) == ("local", None, None)
    assert "nobody could see" in lost.reason
    await all_gone(family)


async def test_a_runner_that_died_without_a_supervisor_is_told_by_the_heir(machine: Machine) -> None:
    first = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD)
    run.train()
    await run.heard(Reported, rank=1)
    family = machine.below(machine.runner())
    await machine.kill(first)
    family[0].kill()
    await all_gone(family)
    await machine.supervisor()
    lost = await run.heard(RunnerLost, incarnation=2)
    assert (lost.exit_code, lost.signal) == (None, None)
    run.stop()
    await run.heard(Released, incarnation=2)
    run.want("place", attempt=2, places=(), layout=(), stop=None)
    await run.heard(Placed, attempt=2)


async def test_one_of_two_runners_is_adopted_the_other_told_as_lost(machine: Machine) -> None:
    first = await machine.supervisor(other=2)
    run = await machine.run("digits-1", UNTIL_TOLD, num_workers=4)
    run.train()
    await run.heard(Reported, rank=3)
    gone, kept = machine.below(machine.runner("other")), machine.runner("local")
    await machine.kill(first)
    gone[0].kill()
    await all_gone(gone)
    await machine.supervisor(other=2)
    lost = await run.heard(RunnerLost, incarnation=2)
    assert lost.node == "other"
    assert alive(kept)
    run.stop()
    await run.heard(Released, incarnation=2)
    assert not alive(kept)
    assert len(run.of(RunnerLost)) == 1


async def test_a_runner_for_which_no_heir_comes_ends_with_its_ranks(machine: Machine) -> None:
    first = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD, timeouts=Timeouts(adopt_within_s=1.0))
    run.train()
    await run.heard(Reported, rank=1)
    family = machine.below(machine.runner())
    await machine.kill(first)
    await all_gone(family)
    assert [(fact.signal, fact.asked) for fact in await run.ended(2)] == [(15, True), (15, True)]
    assert not list(machine.places.iterdir())


async def test_places_that_the_log_does_not_know_are_cleared_and_asked_for_again(machine: Machine) -> None:
    first = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD)
    old = machine.below(machine.runner())
    await machine.kill(first)
    run.want("place", places=())
    await machine.supervisor()
    await run.heard(Placed, incarnation=2)
    await run.heard(RunnerReady, incarnation=2)
    assert not alive(old[0])
    await all_gone(old)
    assert machine.runner().pid != old[0].pid


async def test_a_runner_whose_run_is_over_is_ended_by_the_heir(machine: Machine) -> None:
    first = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD)
    run.train()
    await run.heard(Reported, rank=1)
    family = machine.below(machine.runner())
    await suspended(family[0])
    await machine.kill(first)
    run.want("gone")
    heir = await machine.supervisor()
    await all_gone(family)
    await machine.stop(heir)


async def test_an_orderly_stop_leaves_nothing_and_an_end_of_the_parent_leaves_the_runners(machine: Machine) -> None:
    first = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD)
    run.train()
    await run.heard(Reported, rank=1)
    runner = machine.runner()
    assert first.stdin is not None
    first.stdin.close()
    await within(PATIENCE_S, first.wait())
    assert alive(runner)
    heir = await machine.supervisor()
    await until(lambda: run.joined("pool-local") == 2)
    family = machine.below(runner)
    await machine.stop(heir)
    await all_gone(family)
    assert [fact.asked for fact in await run.ended(2)] == [True, True]


async def test_a_second_runner_ends_at_once(machine: Machine) -> None:
    machine.places.mkdir(mode=0o700)
    me = psutil.Process().pid
    place = Place(
        run="digits-1",
        pool="elsewhere",
        node="local",
        source="local",
        attempt=1,
        pid=me,
        started=start_time(me),
        slots=2,
    )
    lock = PlaceLock.take(machine.places, place)
    await machine.supervisor()
    run = await machine.asked("digits-1", UNTIL_TOLD)
    run.want("place")
    lost = await run.heard(RunnerLost)
    assert lost.exit_code == 78
    assert "another runner" in lost.reason
    lock.release()
    run.stop()
    await run.heard(Released)
    run.want("place", attempt=2, places=(), layout=(), stop=None)
    await run.heard(RunnerReady, attempt=2)


async def test_sigterm_is_a_notice_and_stops_nothing(machine: Machine) -> None:
    supervisor = await machine.supervisor()
    run = await machine.run("digits-1", UNTIL_TOLD)
    run.train()
    await run.heard(Reported, rank=1)
    runner = machine.runner()
    runner.send_signal(signal.SIGTERM)
    by_runner = await run.heard(PreemptionNoticed, source="local")
    assert by_runner.nodes == ("local",)
    assert "SIGTERM" in by_runner.reason
    supervisor.send_signal(signal.SIGTERM)
    by_pool = await run.heard(PreemptionNoticed, source="pool-local")
    assert by_pool.nodes == ("local",)
    (machine.folder / "go").touch()
    await run.heard(RankReturned, count=2)
    assert not [fact for fact in run.of(RankExited) if fact.asked]
