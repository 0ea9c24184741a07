"""Runs that wait for slots, and runs that can never have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runfold.events.beats import PoolBeat
from runfold.events.facts import Placed, PlacementFailed, Queued, Released
from runfold.events.nats.names import Role
from support.waiting import until

if TYPE_CHECKING:
    from runfold.events.nats.client import RawMessage
    from support.pool import PoolForTest

BODY = "import time\ndef train(): time.sleep(600)"


async def test_a_run_waits_and_says_behind_whom_and_for_what(pool: PoolForTest) -> None:
    first = await pool.run("first", BODY, num_workers=3)
    second = await pool.asked("second", BODY, num_workers=2)
    second.want("place", accepted_at="2026-01-02T00:00:00Z")
    queued = await second.heard(Queued)
    assert (queued.ahead, queued.free, queued.needed) == (0, 1, 2)
    third = await pool.asked("third", BODY, num_workers=1)
    third.want("place", accepted_at="2026-01-03T00:00:00Z")
    queued = await third.heard(Queued)
    assert (queued.ahead, queued.free, queued.needed) == (1, 1, 1)
    first.stop()
    await first.heard(Released)
    await second.heard(Placed)
    await third.heard(Placed)


async def test_a_waiting_run_that_is_stopped_leaves_the_queue(pool: PoolForTest) -> None:
    first = await pool.run("first", BODY, num_workers=4)
    second = await pool.asked("second", BODY, num_workers=2)
    second.want("place")
    await second.heard(Queued)
    second.stop()
    await second.heard(Released)
    first.stop()
    await first.heard(Released)
    assert not second.of(Placed)


async def test_what_the_pool_can_never_give_is_said_at_once(pool: PoolForTest) -> None:
    run = await pool.asked("large", BODY, num_workers=5)
    run.want("place")
    failed = await run.heard(PlacementFailed)
    assert failed.verdict == "never"
    assert "5 ranks" in failed.reason


async def test_the_pool_beats_with_what_is_free_and_held(pool: PoolForTest) -> None:
    beats: list[PoolBeat] = []

    async def hear(message: RawMessage) -> None:
        beats.append(msgspec.json.decode(message.data, type=PoolBeat))

    connection = await pool.broker.connect(Role.CLIENT)
    await connection.subscribe(connection.names.subjects.pool_beat("local"), hear)
    await pool.run("first", BODY, num_workers=3)
    await until(lambda: bool(beats) and beats[-1].free == 1)
    assert (beats[-1].nodes, beats[-1].runs) == ({"local": 4}, ("first",))
