"""What the loop takes from the inbox: batched, bounded, each fact once; strangers and nonsense change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import msgspec
import pytest

from runfold.events.beats import Folded
from runfold.events.facts import RankStarted, Reported
from runfold.events.fold import fold_all
from runfold.events.limits import ENTRY_MAX_BYTES, INPUTS_PER_TURN_MAX
from support.hosting import Group, chained, hosting, job, shown, taken
from support.memory_ports import MemoryWorld
from support.virtual import run_virtual
from support.waiting import until


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


def test_reports_are_batched_and_a_decision_takes_them_along_at_once() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            before = len(one.log.entries)
            group.reports(100)
            await shown(one, lambda now: now.ranks[0].index == 99)
            assert len(one.log.entries) == before + 1
            started_s = asyncio.get_running_loop().time()
            group.reports(3)
            group.fails()
            await until(lambda: len(one.log.entries) > before + 1)
            assert asyncio.get_running_loop().time() - started_s < 0.1
            kinds = [type(item).__name__ for item in one.log.entries[before + 1].inputs]
            assert kinds == ["Reported"] * 3 + ["RankFailed"]

    run(story())


def test_a_turn_is_bounded_in_inputs() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            count = 3 * INPUTS_PER_TURN_MAX + 7
            group.runner.say(
                *[group.runner.fact(Reported, rank=0, life=1, index=index, step=index) for index in range(count)]
            )
            await shown(one, lambda now: now.ranks[0].index == count - 1)
            assert all(len(entry.inputs) <= INPUTS_PER_TURN_MAX for entry in one.log.entries)
        assert fold_all(chained(one)).reports == count

    run(story())


def test_an_entry_is_bounded_in_bytes() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            for index in range(24):
                group.runner.say(
                    group.runner.fact(Reported, rank=0, life=1, index=index, metrics={"text": "x" * 200_000})
                )
            await shown(one, lambda now: now.ranks[0].index == 23)
            assert all(len(data) <= ENTRY_MAX_BYTES for data in one.log.log.messages)
        assert fold_all(chained(one)).reports == 24

    run(story())


def test_an_entry_that_comes_out_too_large_is_made_of_half_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            limit = 2 * max(len(data) for data in one.log.log.messages)
            monkeypatch.setattr("runfold.controller.loop.ENTRY_MAX_BYTES", limit)
            group.reports(200)
            await shown(one, lambda now: now.ranks[0].index == 199)
            assert all(len(data) <= limit for data in one.log.log.messages)
            await group.finishes()
        assert fold_all(chained(one)).reports == 200

    run(story())


def test_an_entry_that_can_never_fit_is_a_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            monkeypatch.setattr("runfold.controller.loop.ENTRY_MAX_BYTES", 100)
            group.fails()
            marked = await shown(one, lambda now: now.quarantined is not None)
            assert "entry_max_bytes (100)" in (marked.quarantined or "")

    run(story())


def test_repeats_and_gaps_are_not_logged_and_the_source_is_told() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            group.reports(2)
            await shown(one, lambda now: now.ranks[0].index == 1)
            count, folded = len(one.log.entries), len(one.happened.of("folded"))
            for subject, data in group.runner.said:
                one.inbox.publish(subject, data)
            held_back = group.runner.fact(Reported, rank=0, life=1, index=2)
            group.runner.say(group.runner.fact(Reported, rank=0, life=1, index=3))
            await until(lambda: len(one.happened.of("folded")) > folded)
            said = msgspec.json.decode(one.happened.of("folded")[-1], type=Folded)
            assert said.folded["local"] == held_back.number - 1
            assert len(one.log.entries) == count
            group.runner.say(held_back)
            group.runner.say(msgspec.structs.replace(held_back, number=held_back.number + 1, index=3))
            await shown(one, lambda now: now.ranks[0].index == 3)
        assert fold_all(chained(one)).reports == 4

    run(story())


def test_strangers_and_nonsense_are_counted_and_change_nothing() -> None:
    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, job())
            group = Group(one)
            await group.trains()
            before = one.assignment.data
            for k in range(1000):
                one.inbox.publish("fact.1.local", b"\x00 nonsense %d" % k)
            started = group.runner.fact(RankStarted, rank=0, life=1, pid=1)
            group.runner.number -= 1
            stranger = msgspec.structs.replace(started, source="stranger")
            one.inbox.publish(
                "fact.1.stranger",
                msgspec.json.encode({"run": "digits-1", "facts": [stranger], "v": 1, "kind": "facts"}),
            )
            group.runner.say(group.runner.fact(Reported, rank=99, life=1, index=0))
            group.runner.say(group.runner.fact(Reported, 7, rank=0, life=1, index=0))
            now = await shown(one, lambda now: now.dropped.foreign == 3)
            assert now.dropped.malformed == 1000
            assert now.state == "running"
            assert one.assignment.data == before
            await group.finishes()

    run(story())
