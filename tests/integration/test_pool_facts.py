"""Facts arrive once each, in order, whatever happens to the broker or to who reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runfold.events.beats import RunnerBeat
from runfold.events.facts import FactMessage, RankReturned, Reported
from runfold.events.limits import SPOOL_MAX_BYTES
from runfold.events.nats.names import Role
from support.waiting import until

if TYPE_CHECKING:
    from runfold.events.nats.client import RawMessage
    from support.pool import PoolForTest
    from support.scripted import Scripted

REPORTS = """
import os, time
def train():
    for step in range(200):
        while step == 50 and not os.path.exists("away"):
            time.sleep(0.01)
        runfold.report({"step": step})
        if step == 100:
            open("half", "w").close()
        time.sleep(0.01)
    return "done"
"""
COUNT = 200


async def told_and_returned(run: Scripted) -> bool:
    """Say what is folded, as a controller does again and again; whether a rank was heard to return."""
    await run.say_folded()
    return bool(run.of(RankReturned))


async def test_a_broker_that_is_away_for_a_while_loses_and_doubles_nothing(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", REPORTS)
    run.train()
    await run.heard(Reported, rank=0)
    pool.broker.kill()
    (pool.folder / "away").touch()
    await until((pool.folder / "half").exists)
    pool.broker.restart()
    await run.heard(RankReturned, count=2)
    for rank in (0, 1):
        assert [fact.index for fact in run.of(Reported, rank=rank)] == list(range(COUNT))
    messages = [msgspec.json.decode(data, type=FactMessage) for data in run.messages]
    assert len({(fact.source, fact.number) for message in messages for fact in message.facts}) == len(run.facts)


async def test_what_the_controller_did_not_fold_is_said_again(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", "def train(): runfold.report({'a': 1})", num_workers=1)
    run.folding = False
    run.train()
    await until(lambda: any(b"rank_exited" in data for data in run.messages))
    run.folding = True
    await until(lambda: told_and_returned(run))
    numbers = [fact.number for fact in run.facts if fact.source == "local"]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_beat_tells_of_every_rank(pool: PoolForTest) -> None:
    beats: list[RunnerBeat] = []

    async def hear(message: RawMessage) -> None:
        beats.append(msgspec.json.decode(message.data, type=RunnerBeat))

    connection = await pool.broker.connect(Role.CLIENT)
    await connection.subscribe(connection.names.subjects.beats("digits-1"), hear)
    run = await pool.run(
        "digits-1", "import time\ndef train():\n  runfold.report({'step': 7})\n  time.sleep(600)", num_workers=2
    )
    run.train()
    await until(lambda: bool(beats) and [rank.step for rank in beats[-1].ranks] == [7, 7])
    last = beats[-1]
    assert (last.run, last.source, last.attempt, last.incarnation) == ("digits-1", "local", 1, 1)
    assert [(rank.rank, rank.phase, rank.index) for rank in last.ranks] == [(0, "running", 0), (1, "running", 0)]
    await run.heard(Reported, count=2)
    await until(lambda: beats[-1].number == run.folded["local"])
    await until(lambda: all(rank.memory_bytes for rank in beats[-1].ranks))


async def test_reports_wait_while_the_spool_is_full_and_none_is_lost(pool: PoolForTest) -> None:
    """Nothing is folded: the ranks report until `spool_max_bytes` is reached, and go on once it is."""
    count = 1300
    run = await pool.run(
        "digits-1",
        f"""
        def train():
            for step in range({count}):
                runfold.report({{"text": "x" * 60_000}})
            open("through", "w").close()
        """,
        num_workers=1,
    )
    assert count * 60_000 > SPOOL_MAX_BYTES
    run.folding = False
    run.train()
    await until(lambda: sum(map(len, run.messages)) >= SPOOL_MAX_BYTES, patience_s=120)
    assert not (pool.folder / "through").exists()
    run.folding = True

    await until(lambda: told_and_returned(run), patience_s=120)
    assert [fact.index for fact in run.of(Reported)] == list(range(count))
