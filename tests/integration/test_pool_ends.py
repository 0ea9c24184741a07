"""Whatever dies, what it held ends with it, and is told by who is left."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from runfold.events.facts import Placed, PreemptionNoticed, RankExited, Released, Reported, RunnerLost, RunnerReady
from runfold.events.nats.names import Role
from runfold.workers import supervisor
from runfold.workers.facts import Facts
from support.processes import alive, all_gone, name_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker import BrokerForTest
    from support.pool import PoolForTest

SLEEPS = """
import os, time
def train():
    runfold.report({"pid": os.getpid()})
    time.sleep(600)
"""

STOPS_ITS_PARENT = """
import os, signal, time
def train():
    os.kill(os.getppid(), signal.SIGSTOP)
    runfold.report({"pid": os.getpid()})
    time.sleep(600)
"""


async def test_a_killed_runner_takes_its_ranks_along_and_the_supervisor_says_so(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", SLEEPS)
    run.train()
    await run.heard(Reported, rank=0)
    await run.heard(Reported, rank=1)
    pool.named("runfold-runner")[0].kill()
    lost = await run.heard(RunnerLost)
    assert (lost.node, lost.signal, lost.exit_code) == ("local", 9, None)
    for name in ("rank-0", "rank-1", "runfold-spawner"):
        await pool.gone(name)
    run.stop()
    await run.heard(Released)
    run.want("place", attempt=2, places=(), layout=(), stop=None)
    await run.heard(Placed, attempt=2)


async def test_a_runner_whose_spawner_dies_ends_and_says_what_became_of_its_ranks(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", SLEEPS)
    run.train()
    await run.heard(Reported, rank=0)
    await run.heard(Reported, rank=1)
    pool.named("runfold-spawner")[0].kill()
    lost = await run.heard(RunnerLost)
    assert lost.exit_code not in (None, 0)
    assert len(run.of(RankExited)) == 2
    await pool.gone("rank-0")


async def test_a_rank_that_stops_its_spawner_leaves_nothing(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", STOPS_ITS_PARENT)
    run.train()
    await run.heard(Reported, rank=0)
    below = [*pool.named("runfold-spawner"), *pool.named("rank-0"), *pool.named("rank-1")]
    run.stop(grace_s=0.0)
    await run.heard(Released)
    await all_gone(below)


async def test_a_dead_zygote_is_replaced_and_its_runner_goes_on(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", SLEEPS)
    run.train()
    await run.heard(Reported, rank=0)
    zygotes, runners = pool.named("runfold-zygote"), pool.named("runfold-runner")
    zygotes[0].kill()
    await all_gone(zygotes)
    assert alive(runners[0])
    run.stop()
    await run.heard(Released)
    assert not run.of(RunnerLost)
    assert not alive(runners[0])
    run.want("place", attempt=2, places=(), layout=(), stop=None)
    await run.heard(RunnerReady, attempt=2)


async def test_how_a_runner_ended_whose_zygote_died_before_is_not_guessed(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", SLEEPS)
    run.train()
    await run.heard(Reported, rank=0)
    (runner,) = pool.named("runfold-runner")
    zygotes = pool.named("runfold-zygote")
    zygotes[0].kill()
    await all_gone(zygotes)
    runner.kill()
    lost = await run.heard(RunnerLost)
    assert (lost.signal, lost.exit_code) == (None, None)
    assert "zygote" in lost.reason


async def test_a_supervisor_that_stops_gives_notice_and_leaves_nothing(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", SLEEPS)
    run.train()
    await run.heard(Reported, rank=0)
    await run.heard(Reported, rank=1)
    before = pool.processes()
    await pool.stop()
    notice = await run.heard(PreemptionNoticed)
    lost = await run.heard(RunnerLost)
    assert notice.nodes == (lost.node,)
    assert "stopped" in lost.reason
    assert [fact.asked for fact in await run.ended(2)] == [True, True]
    assert not [process for process in before if process.is_running()]


async def test_the_next_supervisor_says_what_became_of_its_predecessors_runners(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", SLEEPS)
    run.train()
    await run.heard(Reported, rank=0)
    await pool.stop()
    await run.heard(RunnerLost)
    await pool.start()
    lost = await run.heard(RunnerLost, incarnation=2)
    assert "supervisor" in lost.reason
    run.stop()
    await run.heard(Released, incarnation=2)
    run.want("place", attempt=2, places=(), layout=(), stop=None)
    await run.heard(Placed, attempt=2)


async def test_the_death_of_the_supervisor_ends_all_it_started(broker: BrokerForTest, tmp_path: Path) -> None:
    from support.ranks import write_job
    from support.scripted import Scripted, work

    code = "from support.serve import main; main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdin=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    config = {"url": broker.running.url(Role.WORKER), "slots": 2, "base_dir": str(tmp_path)}
    if process.stdin is not None:
        process.stdin.write(msgspec.json.encode(config) + b"\n")
    write_job(tmp_path, SLEEPS)
    run = Scripted(await broker.connect(Role.CONTROLLER), "digits-1", work("job.py:train", str(tmp_path)))
    try:
        await run.place()
        run.train()
        await run.heard(Reported, rank=0)
        await run.heard(Reported, rank=1)
        below = psutil.Process(process.pid).children(recursive=True)
        named = {name_of(one) for one in below}
        assert {"runfold-zygote", "runfold-runner", "runfold-spawner", "rank-0", "rank-1"} <= named
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await all_gone(below)
        assert [(fact.signal, fact.asked) for fact in await run.ended(2)] == [(15, True), (15, True)]
    finally:
        await run.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_supervisor_that_can_say_nothing_of_a_run_any_more_ends(
    pool: PoolForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(facts: Facts) -> None:
        raise RuntimeError(f"a bug in what is said of {facts.run}")

    monkeypatch.setattr(Facts, "_publish", breaks)
    monkeypatch.setattr(supervisor, "SETTLE_TIMEOUT_S", 0.1)  # nothing comes of it
    run = await pool.asked("digits-1", "def train(): pass")
    placing = asyncio.create_task(run.place())
    with pytest.raises(RuntimeError, match="a bug in what is said of digits-1"):
        await pool.ended()
    placing.cancel()
    await asyncio.gather(placing, return_exceptions=True)
