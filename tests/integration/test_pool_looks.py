"""A runner that looks at its ranks for a task, and what is left of one attempt when the next has begun."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from runfold.events.facts import RankReturned, Reported, TaskEnded
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.names import Role
from runfold.events.tasks import STACKS, Task
from support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from support.pool import PoolForTest
    from support.scripted import Scripted

ONE_WAITS = """
import time
def train():
    runfold.report({"a": 1})
    if runfold.get_context().get_world_rank() == 1:
        time.sleep(600)
    runfold.barrier()
"""


async def seen_doing(run: Scripted, *doing: str) -> TaskEnded:
    """Look at the ranks until each is seen to do this: it comes to it in its time, and answers when it has the CPU."""
    number = 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            number += 1
            task = f"stacks-{number}"
            run.want("train", tasks=(Task(id=task, kind=STACKS, source="local"),))
            ended = await run.heard(TaskEnded, task=task)
            if tuple(one.doing for one in ended.seen) == doing:
                return ended


async def test_every_rank_of_a_runner_is_seen_and_its_stacks_are_kept(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", ONE_WAITS)
    run.train()
    await run.heard(Reported, rank=0)
    await run.heard(Reported, rank=1)
    ended = await seen_doing(run, "collective", "idle")
    assert (ended.outcome, ended.attempt) == ("done", 1)
    seen = {one.rank: one for one in ended.seen}
    assert (seen[0].doing, seen[0].waits_in) == ("collective", "barrier #1")
    assert (seen[1].doing, seen[1].waits_in) == ("idle", None)
    assert seen[1].where is not None
    assert seen[1].where.startswith("job.py:")
    blobs = Blobs(await pool.broker.connect(Role.CLIENT))
    assert seen[1].stacks is not None
    text = (await blobs.get(seen[1].stacks)).decode()
    assert text.startswith("runfold: rank 1 of attempt 1")
    assert "in train" in text
    run.want("train", tasks=(Task(id="once more", kind=STACKS, source="local"),))
    assert (await run.heard(TaskEnded, task="once more")).outcome == "done"


async def test_what_nccl_says_of_the_job_stands_beside_what_is_seen(pool: PoolForTest) -> None:
    report = "#0-0 (27a0) MISMATCH\n  Communicator ranks have different status\n  2 ranks have status RUNNING\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(report.encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        run = await pool.asked("digits-1", ONE_WAITS)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        run.work = msgspec.structs.replace(run.work, env={"NCCL_RAS_ADDR": address})
        await run.place()
        run.train()
        await run.heard(Reported, rank=1)
        run.want("train", tasks=(Task(id="stacks-1", kind=STACKS, source="local"),))
        ended = await run.heard(TaskEnded)
    said = "NCCL: communicator #0-0 (27a0) MISMATCH, different status: 2 ranks RUNNING"
    assert [one.nccl for one in ended.seen] == [said, said]
    assert ended.seen[1].words.endswith(said)
    blobs = Blobs(await pool.broker.connect(Role.CLIENT))
    assert ended.seen[1].stacks is not None
    assert report in (await blobs.get(ended.seen[1].stacks)).decode()


async def test_what_is_left_of_an_attempts_collectives_is_no_answer_to_the_next_ones_ranks(pool: PoolForTest) -> None:
    run = await pool.run(
        "digits-1",
        """
        import signal, time
        def train():
            context = runfold.get_context()
            stays = context.get_attempt() == 1 and context.get_world_rank() == 1
            if stays:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            runfold.report({"a": 1})
            if stays:
                while True: time.sleep(600)
            runfold.barrier()
            return context.get_attempt()
        """,
    )
    run.train()
    await run.heard(Reported, rank=0)
    await run.heard(Reported, rank=1)
    # Rank 0 waits for rank 1, is ended and begun again; rank 1 is killed only later.
    run.train(attempt=2)
    await run.heard(RankReturned, count=2, attempt=2)
    assert {fact.value for fact in run.of(RankReturned)} == {2}
