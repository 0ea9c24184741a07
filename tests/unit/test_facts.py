"""What a source learns of itself from its controller, and what it takes for news of somebody else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import msgspec

from runfold.events.assignment import Assignment, SourceGiven
from runfold.events.beats import Folded
from runfold.events.facts import RunnerReady
from runfold.events.nats.client import RawMessage
from runfold.events.nats.connection import Connection
from runfold.events.nats.names import Names
from runfold.workers.facts import Facts

SOURCE = "node-a"


@dataclass(frozen=True)
class Heard:
    """A message on the subject of what is folded."""

    data: bytes


class Deaf:
    """A connection on which nothing is said."""

    names = Names()


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
