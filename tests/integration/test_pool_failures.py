"""Ranks that end badly, with real runners and a real broker: each end becomes facts at once, and nothing else moves."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil

from runfold.events.facts import RankFailed, RankReturned, RankStarted, Reported
from runfold.events.limits import ERROR_INLINE_MAX_BYTES, LAST_LINES_MAX_BYTES
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.names import Role
from support.waiting import until

if TYPE_CHECKING:
    from support.pool import PoolForTest


async def test_an_error_is_told_with_its_frames_and_the_last_lines(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import sys
        def train():
            if runfold.get_context().get_world_rank() == 1:
                print("about to fail")
                raise RuntimeError("boom")
            runfold.barrier()
        """,
    )
    run.train()
    told = await run.heard(RankFailed, rank=1)
    assert (told.error.type, told.error.message, told.error.kind) == ("RuntimeError", "boom", "user")
    assert told.error.where is not None
    assert told.error.where.endswith("in train")
    peer = await run.heard(RankFailed, rank=0)
    assert peer.error.kind == "peer"
    (ended,) = await run.ended(1, rank=1)
    assert (ended.exit_code, ended.returned, ended.asked) == (1, False, False)
    assert "about to fail" in ended.last_lines
    assert "RuntimeError: boom" in ended.last_lines
    assert ended.peak_memory_bytes is not None


async def test_a_rank_killed_by_a_signal_is_told_by_its_number(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "import time\ndef train(): runfold.report({'a': 1}); time.sleep(600)")
    run.train()
    await run.heard(Reported, rank=1)
    started = run.of(RankStarted, rank=1)[0]
    os.kill(started.pid, signal.SIGKILL)
    (ended,) = await run.ended(1, rank=1)
    assert (ended.signal, ended.exit_code, ended.asked, ended.oom) == (9, None, False, False)
    assert not run.of(RankFailed)
    run.stop()
    (other,) = await run.ended(1, rank=0)
    assert (other.signal, other.asked) == (15, True)


async def test_ends_without_a_word(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import os
        def train():
            os._exit(0 if runfold.get_context().get_world_rank() == 0 else 7)
        """,
    )
    run.train()
    ended = {fact.rank: fact for fact in await run.ended(2)}
    assert (ended[0].exit_code, ended[0].returned) == (0, False)
    assert (ended[1].exit_code, ended[1].returned) == (7, False)
    assert not run.of(RankReturned)
    assert not run.of(RankFailed)


async def test_an_exception_that_cannot_be_pickled(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import threading
        class Stubborn(Exception):
            def __init__(self): self.lock = threading.Lock()
            def __str__(self): return "no pickle"
            def __reduce__(self): raise TypeError("never")
        def train(): raise Stubborn()
        """,
        num_workers=1,
    )
    run.train()
    told = await run.heard(RankFailed)
    assert told.error.type.endswith("Stubborn")
    assert told.error.message == "no pickle"


async def test_an_error_of_five_megabytes_is_cut_and_its_whole_text_kept(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "def train(): raise ValueError('x' * 5_000_000)", num_workers=1)
    run.train()
    error = (await run.heard(RankFailed)).error
    assert len(error.message.encode()) + len((error.traceback or "").encode()) <= ERROR_INLINE_MAX_BYTES
    assert error.blob is not None
    (ended,) = await run.ended(1)
    assert len(ended.last_lines.encode()) <= LAST_LINES_MAX_BYTES
    blobs = Blobs(await pool.broker.connect(Role.CLIENT))
    digest = error.blob
    await until(lambda: blobs.has(digest))
    whole = await blobs.get(digest)
    assert whole.count(b"x") >= 5_000_000


async def test_a_rank_that_prints_a_hundred_megabytes_goes_on_and_holds_no_memory(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import sys
        def train():
            runfold.barrier()
            if runfold.get_context().get_world_rank() == 0:
                line = "x" * 99 + "\\n"
                for _ in range(1000):
                    sys.stdout.write(line * 1000)
                print("the last line")
            runfold.barrier()
            return "through"
        """,
    )
    (runner,) = pool.named("runfold-runner")
    run.train()
    await run.heard(RankReturned, count=2)
    (ended,) = await run.ended(1, rank=0)
    assert ended.last_lines.endswith("the last line\n")
    assert runner.memory_info().rss < 400_000_000
    assert psutil.pid_exists(runner.pid)


async def test_what_does_not_load_is_told_as_such_by_every_rank(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "import no_such_module_anywhere\ndef train(): pass")
    run.train()
    await run.heard(RankFailed, count=2)
    assert {fact.error.kind for fact in run.of(RankFailed)} == {"load"}
    assert "no_such_module_anywhere" in run.of(RankFailed)[0].error.message
    assert not run.of(RankStarted)


async def test_one_rank_that_does_not_load_keeps_the_others_from_starting(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import os
        if os.environ["RUNFOLD_RANK"] == "1": raise ImportError("not on this one")
        def train(): runfold.report({"a": 1})
        """,
    )
    run.train()
    await run.heard(RankFailed, rank=1)
    await run.heard(RankStarted, rank=0)
    run.stop()
    (waiting,) = await run.ended(1, rank=0)
    assert waiting.asked
    assert not run.of(Reported)


async def test_garbage_on_the_link_is_that_ranks_failure(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import os, time
        def train():
            for fd in range(3, 64):
                try: os.write(fd, b"garbage" * 100)
                except OSError: pass
            time.sleep(600)
        """,
        num_workers=1,
    )
    run.train()
    told = await run.heard(RankFailed)
    assert told.error.type == "LinkError"
    await run.ended(1)
