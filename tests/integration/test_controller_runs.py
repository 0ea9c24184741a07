"""Runs over a real broker: bad voices harm nobody, a restarted controller goes on, an outage loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pytest_asyncio

from runfold.events.beats import Folded
from runfold.events.conclusions import ControllerStarted
from runfold.events.facts import (
    FactMessage,
    RankFailed,
    Released,
    Reported,
)
from runfold.events.nats.api import Api
from runfold.events.nats.cells import owner_cells
from runfold.events.nats.connection import Connection
from runfold.events.nats.names import Role
from runfold.events.requests import AbortRun
from support.broker import BrokerForTest
from support.controller import Observer, Voice, controller
from support.groups import RUN, Group, asked
from support.waiting import until


@pytest_asyncio.fixture
async def observer(broker: BrokerForTest) -> Observer:
    """A client."""
    return Observer(await broker.connect(Role.CLIENT))


@pytest_asyncio.fixture
async def workers(broker: BrokerForTest) -> AsyncIterator[Connection]:
    """The connection of supervisor and runner."""
    yield await broker.connect(Role.WORKER)


async def running(observer: Observer, workers: Connection, run: str = RUN) -> Group:
    await observer.submit(asked(run))
    await observer.assignment(run)
    group = Group(workers, observer, run)
    await group.trains()
    return group


async def test_a_run_to_its_end_frees_its_key_and_its_inbox(
    broker: BrokerForTest, observer: Observer, workers: Connection
) -> None:
    async with controller(broker):
        group = await running(observer, workers)
        await group.runner.say(group.runner.next(Reported, rank=0, life=1, index=0, metrics={"loss": 0.5}))
        assert (await observer.status(RUN, lambda now: now.metrics is not None)).metrics == {"loss": 0.5}
        await group.finishes()
        owners, api = owner_cells(await broker.connect(Role.CONTROLLER)), await broker.api()

        async def freed() -> bool:
            owner, inbox = await owners.get(RUN), await api.stream_info(broker.names.inbox)
            return owner is not None and owner.data is None and inbox is not None and inbox.state.messages == 0

        await until(freed)
    kinds = [type(item).__name__ for entry in await observer.entries(RUN) for item in entry.inputs]
    assert kinds == [
        *("JobTaken", "ControllerStarted", "Join", "Placed", "Join", "RunnerReady"),
        *("RankStarted", "RankStarted", "Reported", "RankReturned", "RankReturned", "Released"),
    ]


async def test_bad_voices_change_nothing(broker: BrokerForTest, observer: Observer, workers: Connection) -> None:
    async with controller(broker):
        group = await running(observer, workers)
        before = await observer.assignment(RUN)
        runner = group.runner
        for k in range(1000):
            await runner.say_raw(b"\x1b[2J not JSON %d" % k)
        await runner.say(runner.next(Reported, rank=7, life=1, index=0))
        await runner.say(runner.next(Reported, 9, rank=0, life=1, index=0))
        await runner.say(runner.next(Reported, rank=0, life=3, index=0))
        stranger = Voice(workers, observer, RUN, "stranger")
        stranger.incarnation = 1
        await stranger.say(stranger.next(Reported, rank=0, life=1, index=0))
        unknown = Voice(workers, observer, "no-such-run", "local")
        unknown.incarnation = 1
        await unknown.say(unknown.next(Reported, rank=0, life=1, index=0))
        await observer.publish(observer.names.subjects.request(RUN, "dance"), b'{"id": "d"}')
        await observer.publish(observer.names.subjects.request(RUN, "resize"), b'{"id": "r", "num_workers": "many"}')
        now = await observer.status(RUN, lambda now: now.dropped.malformed == 1002)
        assert (now.dropped.foreign, now.dropped.stale, now.state) == (4, 0, "running")
        assert await observer.assignment(RUN) == before
        assert await observer.entries("no-such-run") == []
        await group.finishes()


async def test_a_stray_message_on_the_log_subject_is_stepped_over(
    broker: BrokerForTest, observer: Observer, workers: Connection
) -> None:
    admin = Observer(await broker.connect(Role.ADMIN))
    async with controller(broker):
        group = await running(observer, workers)
        await admin.publish(admin.names.subjects.log(RUN), b"stray")
        await group.finishes()


async def test_an_abort_is_answered_and_bounded(broker: BrokerForTest, observer: Observer, workers: Connection) -> None:
    async with controller(broker):
        group = await running(observer, workers)
        for _ in range(3):
            await observer.request(RUN, "abort", AbortRun(id="a1", by="kim", reason="enough"))
        await observer.status(RUN, lambda now: now.requests.get("a1") == "accepted")
        await observer.assignment(RUN, lambda now: now.want == "stop")
        await group.pool.say(group.pool.next(Released))
        assert (await observer.status(RUN, lambda now: now.terminal)).state == "aborted"


async def test_a_restarted_controller_refolds_and_goes_on(
    broker: BrokerForTest, observer: Observer, workers: Connection
) -> None:
    async with controller(broker) as first:
        group = await running(observer, workers)
        await first.kill()
    count = len(await observer.entries(RUN))
    await group.runner.say(group.runner.next(Reported, rank=0, life=1, index=0, metrics={"loss": 1}))
    async with controller(broker):
        now = await observer.status(RUN, lambda now: now.epoch == 2 and now.metrics is not None)
        assert (now.state, now.attempt) == ("running", 1)
        await observer.assignment(RUN, lambda now: now.epoch == 2)
        failed = {"type": "RuntimeError", "message": "boom", "kind": "user"}
        await group.runner.say(group.runner.next(RankFailed, rank=1, life=1, error=failed))
        await group.starts(2)
        await group.finishes(2)
    entries = await observer.entries(RUN)
    takeover = entries[count]
    assert [type(item) for item in takeover.inputs] == [ControllerStarted]
    assert (takeover.t, takeover.epoch) == (entries[count - 1].t, 2)
    assert all(a.t <= b.t for a, b in pairwise(entries))


async def test_what_is_said_while_the_broker_restarts_is_folded_once(
    broker: BrokerForTest, observer: Observer, workers: Connection
) -> None:
    async with controller(broker):
        group = await running(observer, workers)
        facts = [group.runner.next(Reported, rank=0, life=1, index=k) for k in range(3)]
        await group.runner.say(facts[0])
        await observer.status(RUN, lambda now: now.ranks[0].index == 0)
        broker.kill()
        broker.restart()
        await until(lambda: workers.is_up and observer.connection.is_up)
        await group.runner.say(*facts)
        now = await observer.status(RUN, lambda now: now.ranks[0].index == 2)
        assert (now.epoch, now.attempt, now.state) == (1, 1, "running")
        await group.finishes()
    reports = [item for entry in await observer.entries(RUN) for item in entry.inputs if isinstance(item, Reported)]
    assert [item.index for item in reports] == [0, 1, 2]


async def test_a_source_that_runs_ahead_is_told_what_is_folded(
    broker: BrokerForTest, observer: Observer, workers: Connection
) -> None:
    async with controller(broker):
        group = await running(observer, workers)
        heard: list[Folded] = []

        async def hear(message: object) -> None:
            heard.append(msgspec.json.decode(getattr(message, "data", b""), type=Folded))

        await workers.subscribe(observer.names.subjects.folded(RUN), hear)
        await workers.ready()
        missing = group.runner.next(Reported, rank=0, life=1, index=0)
        ahead = group.runner.next(Reported, rank=0, life=1, index=1)
        await group.runner.say(ahead)
        await until(lambda: any(said.folded["local"] == missing.number - 1 for said in heard))
        await group.runner.say(missing, ahead)
        await until(lambda: any(said.folded["local"] == ahead.number for said in heard))


async def test_many_runs_side_by_side(broker: BrokerForTest, observer: Observer, workers: Connection) -> None:
    async with controller(broker):
        groups = await asyncio.gather(*[running(observer, workers, f"run-{k}") for k in range(8)])
        await asyncio.gather(*[group.finishes() for group in groups])


async def test_entries_are_plain_json_for_people(broker: BrokerForTest, observer: Observer) -> None:
    async with controller(broker):
        await observer.submit(asked())
        await observer.status(RUN)
    api = Api(observer.connection)
    message = await api.last_message(observer.names.log, observer.names.subjects.log(RUN))
    assert message is not None
    entry = json.loads(message.data)
    assert list(entry) == ["v", "run", "n", "t", "at", "by", "epoch", "cursor", "inputs", "transitions", "prev"]
    assert entry["inputs"][0]["from"] == {"jobs": 1}


async def test_a_fact_may_come_in_any_number_of_messages(
    broker: BrokerForTest, observer: Observer, workers: Connection
) -> None:
    """A source cuts what it repeats anew: facts overlap, and are folded once."""
    async with controller(broker):
        group = await running(observer, workers)
        facts = [group.runner.next(Reported, rank=0, life=1, index=k) for k in range(6)]
        for part in (facts[0:2], facts[1:4], facts[0:6], facts[2:3]):
            await group.runner.say_raw(msgspec.json.encode(FactMessage(run=RUN, facts=tuple(part))))
        await observer.status(RUN, lambda now: now.ranks[0].index == 5)
    reports = [item for entry in await observer.entries(RUN) for item in entry.inputs if isinstance(item, Reported)]
    assert [item.index for item in reports] == [0, 1, 2, 3, 4, 5]
