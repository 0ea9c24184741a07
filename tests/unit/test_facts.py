"""What a source learns of itself from its controller, and what it takes for news of somebody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import msgspec

from runfold.events.assignment import Assignment, SourceGiven
from runfold.events.beats import Folded
from runfold.events.facts import RunnerReady
from runfold.events.nats.client import RawMessage
from runfold.events.nats.connection import Connection
from runfold.events.nats.errors import Unanswered
from runfold.events.nats.names import Names
from runfold.events.requests import Join
from runfold.workers.facts import JOIN_REPEAT_S, Facts
from support.virtual import run_virtual

SOURCE = "node-a"


@dataclass(frozen=True)
class Heard:
    """A message on the subject of what is folded."""

    data: bytes


class Deaf:
    """A connection on which nothing is said."""

    names = Names()


class Inbox(Deaf):
    """A connection that keeps what is published into the inbox."""

    def __init__(self) -> None:
        self.joins: list[Join] = []

    async def wait_up(self) -> bool:
        return True

    async def request(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None, timeout_s: float) -> Heard:
        self.joins.append(msgspec.json.decode(data, type=Join))
        return Heard(b'{"stream": "INBOX", "seq": 1}')

    async def subscribe(self, subject: str, callback: object) -> None:
        await asyncio.Event().wait()


def source(boot: str = "second") -> Facts:
    return Facts(cast("Connection", Deaf()), run="digits-1", source=SOURCE, boot=boot, flush_s=0.5)


def shown(n: int, boot: str, incarnation: int, folded: int = 0) -> Assignment:
    return Assignment(
        run="digits-1",
        epoch=3,
        n=n,
        hash="0" * 64,
        attempt=2,
        want="place",
        joined=(SourceGiven(source=SOURCE, boot=boot, incarnation=incarnation),),
        folded={SOURCE: folded},
    )


def hear_folded(facts: Facts, n: int, number: int, epoch: int = 3) -> None:
    said = Folded(run="digits-1", epoch=epoch, n=n, folded={SOURCE: number})
    asyncio.run(facts._heard_folded(cast("RawMessage", Heard(msgspec.json.encode(said)))))


def say(facts: Facts, times: int) -> None:
    for _ in range(times):
        ready = RunnerReady(source="", incarnation=0, number=0, attempt=2, node=SOURCE, addr="127.0.0.1", port=1)
        facts.say(ready)


def kept(facts: Facts) -> int:
    """How many facts are kept, since nobody said that they are folded."""
    return facts.spool.number - facts.spool._folded


def test_what_is_folded_of_its_former_life_is_no_news_of_this_one() -> None:
    facts = source()
    facts.hear(shown(10, "first", 1, folded=40))
    facts.hear(shown(12, "second", 2))
    say(facts, 5)
    hear_folded(facts, 11, 40)  # said before this life began, and late
    hear_folded(facts, 99, 40, epoch=2)  # by a controller that was fenced
    assert kept(facts) == 5
    hear_folded(facts, 13, 3)
    assert kept(facts) == 2


def test_what_is_said_before_it_has_a_name_is_no_news_at_all() -> None:
    facts = source()
    say(facts, 2)
    hear_folded(facts, 99, 40)
    facts.hear(shown(12, "second", 1))
    assert kept(facts) == 2
    assert not facts.superseded


def test_a_newer_process_of_its_name_silences_it() -> None:
    facts = source("first")
    facts.hear(shown(10, "first", 1))
    facts.hear(shown(12, "second", 2))
    assert facts.superseded


def test_it_asks_for_its_name_after_the_one_who_has_it_and_again_when_another_was_quicker() -> None:
    async def story() -> list[int | None]:
        inbox = Inbox()
        facts = Facts(cast("Connection", inbox), run="digits-1", source=SOURCE, boot="third", flush_s=0.5)
        facts.start()
        await asyncio.sleep(10 * JOIN_REPEAT_S)
        assert inbox.joins == []  # it has not heard of the run yet
        facts.hear(shown(10, "first", 1))
        await asyncio.sleep(JOIN_REPEAT_S / 2)
        facts.hear(shown(11, "second", 2))
        await asyncio.sleep(JOIN_REPEAT_S / 2)
        facts.hear(shown(12, "third", 3))
        await asyncio.sleep(10 * JOIN_REPEAT_S)
        await facts.close()
        assert {(join.id, join.boot, join.source) for join in inbox.joins} == {("third", "third", SOURCE)}
        return [join.after for join in inbox.joins]

    assert run_virtual(story()) == [1, 2]


def test_it_asks_again_for_as_long_as_nobody_answers() -> None:
    async def story() -> list[int | None]:
        inbox = Inbox()
        facts = Facts(cast("Connection", inbox), run="digits-1", source=SOURCE, boot="first", flush_s=0.5)
        facts.start()
        facts.hear(msgspec.structs.replace(shown(10, "", 0), joined=()))
        await asyncio.sleep(3.5 * JOIN_REPEAT_S)
        await facts.close()
        return [join.after for join in inbox.joins]

    assert run_virtual(story()) == [0, 0, 0]


def test_for_how_long_the_broker_does_not_take_what_it_says() -> None:
    """Joining, and facts: each is unsaid until it is acknowledged, and then nothing is."""

    class Full(Inbox):
        takes = False

        async def request(
            self, subject: str, data: bytes, *, headers: Mapping[str, str] | None, timeout_s: float
        ) -> Heard:
            if not self.takes:
                raise Unanswered(subject, "no answer")
            return Heard(b'{"stream": "INBOX", "seq": 1}')

    async def story() -> list[bool]:
        inbox, found = Full(), list[bool]()
        facts = Facts(cast("Connection", inbox), run="digits-1", source=SOURCE, boot="first", flush_s=0.5)

        def note() -> None:
            found.append(facts.unsaid_s(time.monotonic() + 60) >= 60)

        facts.start()
        note()
        facts.hear(msgspec.structs.replace(shown(10, "", 0), joined=()))
        await asyncio.sleep(3 * JOIN_REPEAT_S)
        note()
        inbox.takes = True
        await asyncio.sleep(10 * JOIN_REPEAT_S)
        note()
        facts.hear(shown(11, "first", 1))
        inbox.takes = False
        say(facts, 1)
        await asyncio.sleep(1.0)
        note()
        inbox.takes = True
        await asyncio.sleep(1.0)
        note()
        await facts.close()
        return found

    assert run_virtual(story()) == [False, True, False, True, False]
