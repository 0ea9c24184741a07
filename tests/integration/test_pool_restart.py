"""A new attempt on kept places, and words that come while something else is under way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import psutil

from runfold.events.facts import (
    FactMessage,
    Placed,
    RankExited,
    RankFailed,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerLost,
    RunnerReady,
)
from support.processes import all_gone, name_of, suspended
from support.waiting import until

if TYPE_CHECKING:
    from support.pool import PoolForTest

FAILS_ONCE = """
import time
def train():
    context = runfold.get_context()
    runfold.report({"attempt": context.get_attempt()})
    if context.get_attempt() == 1 and context.get_world_rank() == 1:
        raise RuntimeError("once")
    if context.get_attempt() == 1:
        time.sleep(600)
    runfold.barrier()
    return context.get_attempt()
"""


async def test_a_new_attempt_runs_in_the_same_runner_on_the_same_places(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", FAILS_ONCE)
    (runner,) = pool.named("runfold-runner")
    run.train()
    await run.heard(RankFailed, rank=1)
    run.train(attempt=2)
    await run.heard(RankReturned, count=2, attempt=2)
    assert [fact.value for fact in run.of(RankReturned)] == [2, 2]
    survivor = run.of(RankExited, attempt=1, rank=0)[0]
    assert (survivor.signal, survivor.asked) == (15, True)
    assert [process.pid for process in pool.named("runfold-runner")] == [runner.pid]
    assert len(run.of(Placed)) == len(run.of(RunnerReady)) == 1
    assert len({fact.pid for fact in run.of(RankStarted)}) == 4
    numbers = [fact.number for fact in run.facts if fact.source == "local"]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_rank_that_will_not_end_is_made_to_before_its_place_is_used_again(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import signal, time
        def train():
            context = runfold.get_context()
            if context.get_attempt() == 1:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                runfold.report({"stubborn": 1})
                while True: time.sleep(600)
            return "second"
        """,
    )
    run.train()
    await run.heard(Reported, rank=0)
    await run.heard(Reported, rank=1)
    run.train(attempt=2)
    await run.heard(RankReturned, count=2, attempt=2)
    assert [(fact.signal, fact.asked) for fact in run.of(RankExited, attempt=1)] == [(9, True), (9, True)]


async def test_a_newer_attempt_while_the_older_one_is_still_stopping(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import signal, time
        def train():
            attempt = runfold.get_context().get_attempt()
            if attempt < 4:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                runfold.report({"attempt": attempt})
                while True: time.sleep(600)
            return attempt
        """,
    )
    run.train()
    await run.heard(Reported, rank=0)
    await run.heard(Reported, rank=1)
    for attempt in (2, 3, 4):
        run.train(attempt=attempt)
    await run.heard(RankReturned, count=2, attempt=4)
    assert {fact.attempt for fact in run.of(RankReturned)} == {4}
    # A rank returns before its process has ended.
    await until(lambda: not pool.named("rank-0") and not pool.named("rank-1"))


async def test_a_stop_while_ranks_are_being_started(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "import time\ntime.sleep(600)\ndef train(): pass")
    run.train()
    await until(lambda: len(pool.named("rank-0")) == 1)
    run.stop()
    await run.heard(Released)
    assert [(fact.signal, fact.asked) for fact in run.of(RankExited)] == [(15, True), (15, True)]
    assert not pool.named("runfold-runner")


async def test_train_and_stop_at_once(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "def train(): pass")
    run.train()
    run.stop()
    await run.heard(Released)
    assert not pool.named("runfold-runner")


async def test_a_stop_before_the_runner_is_there(pool: PoolForTest) -> None:
    run = await pool.asked("digits-1", "def train(): pass")
    run.want("place")
    await run.heard(Placed)
    run.stop()
    await run.heard(Released)
    assert not pool.named("runfold-runner")
    assert not run.of(RunnerLost)


async def test_a_run_is_placed_again_after_its_release(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "def train(): return runfold.get_context().get_attempt()")
    run.stop()
    await run.heard(Released)
    run.want("place", attempt=2, places=(), layout=(), stop=None)
    await run.heard(Placed, attempt=2)
    await run.heard(RunnerReady, attempt=2)
    assert run.of(RunnerReady)[1].incarnation == 2


async def test_what_a_rank_started_ends_with_it(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import subprocess, time
        def train():
            children = [subprocess.Popen(["sleep", "600"], start_new_session=detached) for detached in (False, True)]
            runfold.report({"pids": [child.pid for child in children]})
            time.sleep(600)
        """,
        num_workers=1,
    )
    run.train()
    reported = await run.heard(Reported)
    assert reported.metrics is not None
    pids = reported.metrics["pids"]
    assert isinstance(pids, list)
    run.stop()
    await run.heard(Released)
    for pid in pids:
        assert isinstance(pid, int)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        raise AssertionError(f"{pid} outlived its rank")


ENDS_SLOWLY = """
import atexit, pathlib, threading, time
def flush():
    time.sleep(0.5)
    pathlib.Path("flushed").write_text("by the end of the program")
def train():
    threading.Thread(target=time.sleep, args=(0.5,)).start()
    atexit.register(flush)
"""


async def test_a_rank_that_has_returned_ends_like_a_program_and_is_not_cut_short(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", ENDS_SLOWLY, num_workers=1)
    run.train()
    await run.heard(RankReturned)
    run.stop(grace_s=60.0)
    await run.heard(Released)
    (ended,) = run.of(RankExited)
    assert (ended.exit_code, ended.signal, ended.returned) == (0, None, True)
    assert (pool.folder / "flushed").exists()


async def test_a_rank_that_has_returned_and_never_ends_is_made_to(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", ENDS_SLOWLY.replace("0.5", "600"), num_workers=1)
    run.train()
    await run.heard(RankReturned)
    run.stop(grace_s=0.5)
    await run.heard(Released)
    (ended,) = run.of(RankExited)
    assert (ended.signal, ended.returned) == (9, True)


async def test_a_rank_that_is_stopped_is_replaced_and_never_wakes(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", FAILS_ONCE)
    run.train()
    await run.heard(RankFailed, rank=1)
    stopped = psutil.Process(run.of(RankStarted, rank=0)[0].pid)
    await suspended(stopped)
    run.train(attempt=2)
    await run.heard(RankReturned, count=2, attempt=2)
    assert not stopped.is_running()
    assert [(fact.signal, fact.asked) for fact in run.of(RankExited, attempt=1, rank=0)] == [(9, True)]


# --- back from the dead

SPEAKS_ON = """
import time
def train():
    step = 0
    while True:
        runfold.report({"step": step})
        step += 1
        time.sleep(0.02)
"""


async def test_a_runner_whose_name_is_given_to_another_wakes_up_and_ends_with_its_ranks(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", SPEAKS_ON)
    run.train()
    await run.heard(Reported, rank=1)
    (runner,) = pool.named("runfold-runner")
    family = [runner, *runner.children(recursive=True)]
    await suspended(runner)
    run.give("local", "another")
    before = len(run.messages)
    runner.resume()
    await all_gone(family)
    said = [fact for data in run.messages[before:] for fact in msgspec.json.decode(data, type=FactMessage).facts]
    assert {fact.incarnation for fact in said if fact.source == "local"} <= {1}
    assert not run.of(Reported, incarnation=2)


async def test_a_runner_whose_place_is_given_up_wakes_up_and_ends_with_its_ranks(wide_pool: PoolForTest) -> None:
    run = await wide_pool.run("digits-1", SPEAKS_ON, num_workers=4)
    run.train()
    await run.heard(Reported, rank=3)
    far = run.of(Reported, rank=3)[0].source
    runners = wide_pool.named("runfold-runner")
    runner = next(one for one in runners if "rank-3" in {name_of(child) for child in one.children(recursive=True)})
    family = [runner, *runner.children(recursive=True)]
    await suspended(runner)
    run.want("stop", places=tuple(place for place in run.places if place.source != far))
    run.train(attempt=2)
    await run.heard(Reported, rank=0, attempt=2)
    runner.resume()
    await all_gone(family)
    assert not run.of(Reported, source=far, attempt=2)
