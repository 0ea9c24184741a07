"""What is to be done of many things, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine

from runfold.agenda import Agenda
from support.virtual import run_virtual


def run(story: Coroutine[None, None, None]) -> None:
    run_virtual(story)


def now() -> float:
    return asyncio.get_running_loop().time()


async def taken(agenda: Agenda, count: int) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for _ in range(count):
        name = await agenda.next()
        found.append((name, round(now(), 3)))
        agenda.done(name)
    return found


def test_things_are_done_when_they_are_due() -> None:
    async def story() -> None:
        agenda = Agenda()
        agenda.want("b", 2.0)
        agenda.want("a", 1.0)
        agenda.want("c", 3.0)
        assert await taken(agenda, 3) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]

    run(story())


def test_what_is_wanted_sooner_is_done_sooner_and_once() -> None:
    async def story() -> None:
        agenda = Agenda()
        agenda.want("a", 60.0)
        agenda.want("a", 1.0)
        agenda.want("a", 5.0)
        agenda.want("b", 90.0)
        assert await taken(agenda, 2) == [("a", 1.0), ("b", 90.0)]

    run(story())


def test_what_is_urgent_comes_first_and_ends_a_rest() -> None:
    async def story() -> None:
        agenda = Agenda()
        agenda.want("slow", 0.0)
        agenda.want("late", 60.0)
        agenda.want("urgent", 9.0, urgent=True)
        assert [name for name, _ in await taken(agenda, 2)] == ["urgent", "slow"]
        asyncio.get_running_loop().call_later(1.0, lambda: agenda.want("late", 0.0, urgent=True))
        await agenda.rest(5.0)
        assert now() == 1.0
        assert await taken(agenda, 1) == [("late", 1.0)]
        await agenda.rest(5.0)
        assert now() == 6.0

    run(story())


def test_nobody_is_at_a_thing_that_somebody_is_at() -> None:
    async def story() -> None:
        agenda = Agenda()
        agenda.want("a", 0.0)
        assert await agenda.next() == "a"
        agenda.want("a", 0.0)
        agenda.want("b", 1.0)
        assert await agenda.next() == "b"
        agenda.done("b")
        waiting = asyncio.create_task(agenda.next())
        await asyncio.sleep(1.0)
        assert not waiting.done()
        agenda.done("a")
        assert await waiting == "a"

    run(story())


def test_many_workers_share_what_is_due() -> None:
    async def story() -> None:
        agenda = Agenda()
        seen: list[str] = []

        async def work() -> None:
            while True:
                name = await agenda.next()
                await asyncio.sleep(0.1)
                seen.append(name)
                agenda.done(name)

        workers = [asyncio.create_task(work()) for _ in range(3)]
        for k in range(20):
            agenda.want(str(k), 0.0)
        await asyncio.sleep(5.0)
        assert sorted(map(int, seen)) == list(range(20))
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    run(story())


def test_what_is_overdue_already_and_becomes_urgent_is_done_next_and_not_lost() -> None:
    async def story() -> None:
        agenda = Agenda()
        agenda.want("first", 0.5)
        agenda.want("overdue", 1.0)
        await asyncio.sleep(5.0)  # nobody had time
        agenda.want("overdue", 0.0, urgent=True)
        assert [name for name, _ in await taken(agenda, 2)] == ["overdue", "first"]
        agenda.want("overdue", 1.0)
        assert await taken(agenda, 1) == [("overdue", 6.0)]

    run(story())


def test_whatever_is_wanted_whenever_is_done_in_the_end() -> None:
    """Any order of wishes, some urgent, with workers who are busy or late: nothing that is wanted last is left."""

    async def story(seed: int) -> None:
        chance = random.Random(seed)
        agenda, last_wanted, last_done = Agenda(), dict[str, float](), dict[str, float]()

        async def works() -> None:
            while True:
                name = await agenda.next()
                began = now()
                await asyncio.sleep(chance.random() * 3)
                last_done[name] = began
                agenda.done(name)

        worker = asyncio.ensure_future(works())
        for _ in range(40):
            name = chance.choice("abcd")
            agenda.want(name, chance.random() * 2, urgent=chance.random() < 0.3)
            last_wanted[name] = now()
            await asyncio.sleep(chance.random())
        await asyncio.sleep(60.0)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        assert all(last_done[name] >= wanted_at for name, wanted_at in last_wanted.items()), seed

    for seed in range(200):
        run(story(seed))
