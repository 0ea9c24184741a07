"""The capacity of a pool: told to runs that ask, changed by who may, and taken where it was given."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from runfold.events.facts import (
    CapacityChanged,
    Placed,
    PreemptionCancelled,
    PreemptionNoticed,
    Queued,
    RankStarted,
    Released,
    RunnerLost,
)
from runfold.events.limits import REQUEST_MAX_BYTES
from runfold.events.nats.names import Role
from runfold.events.pools import SLOTS_MAX_COUNT, CapacitySet, SetCapacity
from runfold.workers.desk import Desk
from support.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    import pytest

    from runfold.events.nats.client import RawMessage
    from support.pool import PoolForTest

BODY = "import time\ndef train(): time.sleep(600)"


class Asker:
    """Somebody who asks a pool for another capacity."""

    def __init__(self, pool: PoolForTest) -> None:
        self.pool = pool
        self._asked = 0

    async def __call__(
        self, slots: int, node: str | None = None, *, within_s: float = 0.0, name: str = ""
    ) -> CapacitySet:
        """Ask, and return the answer."""
        connection = await self.pool.broker.connect(Role.CLIENT)

        self._asked += 1
        wish = SetCapacity(id=name or f"wish-{self._asked}", slots=slots, node=node, within_s=within_s, by="ada")
        answers: list[CapacitySet] = []

        async def hear(message: RawMessage) -> None:
            answer = msgspec.json.decode(message.data, type=CapacitySet)
            # A wish that was said again is answered again, maybe while the next one is asked.
            if answer.id == wish.id:
                answers.append(answer)

        subjects = connection.names.subjects
        subscription = await connection.subscribe(subjects.pool_answer("local"), hear)
        async with asyncio.timeout(PATIENCE_S):
            while not answers:
                await connection.publish(subjects.pool_request("local", "capacity"), msgspec.json.encode(wish))
                await asyncio.sleep(0.2)
        await connection.unsubscribe(subscription)
        return answers[0]


async def test_a_run_that_asks_is_told_what_there_is_room_for_and_each_change_once(wide_pool: PoolForTest) -> None:
    run = await wide_pool.asked("digits-1", BODY)
    run.want("stop", attempt=0, room_for=4)
    told = await run.heard(CapacityChanged)
    assert (told.slots, told.room, told.fits) == ({"local": 2, "other": 2}, {"local": 2, "other": 2}, 4)
    other = await wide_pool.run("digits-2", BODY, num_workers=3)
    told = await run.heard(CapacityChanged, count=2)
    assert told.fits == 1
    other.stop()
    await other.heard(Released)
    told = await run.heard(CapacityChanged, count=3)
    assert told.fits == 4
    assert not other.of(CapacityChanged), "it did not ask"
    run.want("gone", room_for=0)


async def test_what_a_run_holds_itself_counts_as_room(wide_pool: PoolForTest) -> None:
    run = await wide_pool.asked("digits-1", BODY, num_workers=3)
    run.want("place", room_for=8)
    await run.heard(Placed)
    told = await run.heard(CapacityChanged)
    assert told.fits == 4
    run.stop()
    await run.heard(Released)
    assert len(run.of(CapacityChanged)) == 1, "nothing has changed for it"


async def test_places_that_are_gone_are_taken_and_the_run_is_told(wide_pool: PoolForTest) -> None:
    run = await wide_pool.asked("digits-1", BODY, num_workers=4)
    run.want("place", room_for=4)
    await run.place()
    run.train()
    await run.heard(RankStarted, count=4)
    ask = Asker(wide_pool)
    answer = await ask(0, "other")
    assert (answer.done, answer.nodes, answer.losing) == (True, {"local": 2, "other": 0}, {"digits-1": ("other",)})
    noticed = await run.heard(PreemptionNoticed)
    assert (noticed.nodes, noticed.within_s) == (("other",), 0.0)
    assert noticed.reason == "ada set the capacity of other to 0"
    lost = await run.heard(RunnerLost)
    assert (lost.node, lost.taken, lost.reason) == ("other", True, noticed.reason)
    told = await run.heard(CapacityChanged, fits=2)
    assert (told.slots, told.room) == ({"local": 2}, {"local": 2})
    assert len(wide_pool.named("runfold-runner")) == 1, "the other node's is left alone"
    run.stop(grace_s=0.5)
    await run.heard(Released)
    await ask(2, "other")
    await until(lambda: run.of(CapacityChanged)[-1].fits == 4)
    assert not run.of(PreemptionCancelled), "what comes back is another node"


async def test_part_of_a_node_that_is_taken_leaves_the_rest_of_it(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", BODY, num_workers=3)
    run.train()
    await run.heard(RankStarted, count=3)
    await Asker(pool)(2)
    await run.heard(RunnerLost, taken=True)
    run.stop(grace_s=0.5)
    await run.heard(Released)
    await run.heard(PreemptionCancelled, nodes=("local",))


async def test_who_leaves_time_has_places_taken_after_it_unless_they_are_given_back(pool: PoolForTest) -> None:
    run = await pool.run("digits-1", BODY, num_workers=3)
    run.train()
    await run.heard(RankStarted, count=3)
    ask = Asker(pool)
    await ask(2, within_s=600.0)
    noticed = await run.heard(PreemptionNoticed)
    assert noticed.within_s == 600.0
    await ask(3)
    await run.heard(PreemptionCancelled, nodes=("local",))
    assert not run.of(RunnerLost)


async def test_a_place_that_was_taken_is_lost_first_though_its_node_should_be_back_at_once(
    wide_pool: PoolForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    take_away = Desk.take_away

    def counted(desk: Desk, node: str, reason: str) -> None:
        taken.append(node)
        take_away(desk, node, reason)

    monkeypatch.setattr(Desk, "take_away", counted)
    run = await wide_pool.run("digits-1", BODY, num_workers=4)
    run.train()
    await run.heard(RankStarted, count=4)
    ask, runners = Asker(wide_pool), wide_pool.named("runfold-runner")
    for runner in runners:
        runner.suspend()
    try:
        await ask(0, "other")
        await until(lambda: "other" in taken)
        await ask(2, "other")
    finally:
        for runner in runners:
            runner.resume()
    await run.heard(RunnerLost, node="other", taken=True)
    run.stop(grace_s=0.5)
    await run.heard(PreemptionCancelled, nodes=("other",))
    said = [fact for fact in run.facts if isinstance(fact, PreemptionCancelled | RunnerLost)]
    assert [type(fact) for fact in said] == [RunnerLost, PreemptionCancelled], "what is taken does not stay"


async def test_a_run_too_large_for_what_is_left_waits_for_it(pool: PoolForTest) -> None:
    ask = Asker(pool)
    await ask(1)
    run = await pool.asked("digits-1", BODY, num_workers=3)
    run.want("place")
    assert (await run.heard(Queued)).free == 1
    await ask(4)
    await run.heard(Placed)


async def test_what_cannot_be_is_refused_with_the_reason_and_the_same_wish_has_the_same_answer(
    pool: PoolForTest,
) -> None:
    ask = Asker(pool)
    answer = await ask(1, "nowhere")
    assert (answer.done, answer.nodes) == (False, {"local": 4})
    assert "there is no node 'nowhere' in this pool; there are local" in answer.reason
    for slots in (-1, SLOTS_MAX_COUNT + 1):
        assert f"slots: must be 0 to {SLOTS_MAX_COUNT}, not {slots}" in (await ask(slots)).reason
    assert "within_s" in (await ask(1, within_s=-1.0)).reason
    first = await ask(3, name="once")
    await ask(2)
    assert await ask(1, name="once") == first, "it is known, and not done again"
    assert (await ask(0)).nodes == {"local": 0}, "a node without slots is told of too"
    assert (await ask(4)).nodes == {"local": 4}


async def test_a_wish_that_cannot_be_read_or_is_too_large_changes_nothing(pool: PoolForTest) -> None:
    connection = await pool.broker.connect(Role.CLIENT)
    subject = connection.names.subjects.pool_request("local", "capacity")
    large = SetCapacity(id="large", slots=1, by="x" * REQUEST_MAX_BYTES)
    for wish in (b"", b"{", b'{"id":' + b"[" * 10_000, msgspec.json.encode(large)):
        await connection.publish(subject, wish)
    assert (await Asker(pool)(1, "nowhere")).nodes == {"local": 4}
