"""A connection over the broker's outages: what it keeps, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from runfold.events.nats.connection import PENDING_NONE
from runfold.events.nats.errors import BrokerClosed, Unanswered
from runfold.events.nats.names import Role
from runfold.events.nats.publish import publish_acked
from support.broker import ANSWER_TIMEOUT_S
from support.waiting import until, within

if TYPE_CHECKING:
    from runfold.events.nats.client import RawMessage
    from support.broker import BrokerForTest

FOR_EVER_S = 3600.0


async def test_a_request_nobody_answers_is_said_at_once(bare_broker: BrokerForTest) -> None:
    admin = await bare_broker.connect(Role.ADMIN)
    with pytest.raises(Unanswered, match="nobody"):
        await admin.request("nobody.there", b"", timeout_s=FOR_EVER_S)
    with pytest.raises(Unanswered, match="nobody"):
        await publish_acked(admin, "no.stream.here", b"", timeout_s=FOR_EVER_S)


async def test_a_request_is_given_up_when_its_time_is_over(bare_broker: BrokerForTest) -> None:
    admin, silent = await bare_broker.connect(Role.ADMIN), await bare_broker.connect(Role.ADMIN)

    async def hear(_: RawMessage) -> None:
        pass

    await silent.subscribe("silent", hear)
    await silent.ready()
    with pytest.raises(Unanswered, match=r"within 0\.05 s"):
        await admin.request("silent", b"", timeout_s=0.05)


async def test_a_lost_connection_ends_requests_at_once(bare_broker: BrokerForTest) -> None:
    admin, silent = await bare_broker.connect(Role.ADMIN), await bare_broker.connect(Role.ADMIN)
    heard = asyncio.Event()

    async def hear(_: RawMessage) -> None:
        heard.set()

    await silent.subscribe("silent", hear)
    await silent.ready()
    asking = asyncio.ensure_future(admin.request("silent", b"", timeout_s=FOR_EVER_S))
    await within(ANSWER_TIMEOUT_S, heard.wait())
    bare_broker.kill()
    with pytest.raises(Unanswered, match="lost"):
        await within(ANSWER_TIMEOUT_S, asking)


async def test_what_a_connection_keeps_for_later_is_said_later(bare_broker: BrokerForTest) -> None:
    keeps = await bare_broker.connect(Role.ADMIN)
    keeps_not = await bare_broker.connect(Role.ADMIN, pending_max_bytes=PENDING_NONE)
    heard: list[bytes] = []

    async def hear(message: RawMessage) -> None:
        heard.append(message.data)

    await keeps.subscribe("said", hear)
    bare_broker.kill()
    await until(lambda: not keeps.is_up and not keeps_not.is_up)
    await keeps.publish("said", b"kept")
    with pytest.raises(Unanswered, match="down"):
        await keeps_not.publish("said", b"not kept")
    assert not await keeps_not.wait_up(0.05)
    bare_broker.restart()
    assert await keeps_not.wait_up(ANSWER_TIMEOUT_S)
    assert await keeps.wait_up(ANSWER_TIMEOUT_S)
    await keeps.ready()
    await keeps_not.publish("said", b"new")
    await until(lambda: set(heard) == {b"kept", b"new"})
    assert keeps.generation == keeps_not.generation == 1


async def test_who_listens_is_told_of_every_change(bare_broker: BrokerForTest) -> None:
    admin = await bare_broker.connect(Role.ADMIN)
    states: list[bool] = []
    forget = admin.on_change(lambda: states.append(admin.is_up))
    bare_broker.kill()
    await until(lambda: states == [False])
    bare_broker.restart()
    await until(lambda: states == [False, True])
    forget()
    await admin.close()
    assert states == [False, True]


@pytest.mark.parametrize("away", [False, True])
async def test_closing_ends_everything_also_while_the_server_is_away(bare_broker: BrokerForTest, away: bool) -> None:
    admin = await bare_broker.connect(Role.ADMIN)

    async def hear(_: RawMessage) -> None:
        pass

    await admin.subscribe("a", hear)
    await admin.request("$JS.API.INFO", b"", timeout_s=ANSWER_TIMEOUT_S)
    if away:
        bare_broker.kill()
        await until(lambda: not admin.is_up)
        await admin.publish("kept", b"for later")
    before = len(asyncio.all_tasks())
    await admin.close()
    await admin.close()
    assert admin.is_closed
    assert not admin.is_up
    await until(lambda: len(asyncio.all_tasks()) < before)
    for call in (
        admin.publish("a", b""),
        admin.request("a", b"", timeout_s=FOR_EVER_S),
        admin.subscribe("a", hear),
        admin.wait_up(FOR_EVER_S),
    ):
        with pytest.raises(BrokerClosed):
            await call


async def test_what_a_callback_cannot_take_in_time_is_counted(
    bare_broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runfold.events.nats.connection.SUBSCRIPTION_MESSAGES_MAX", 10)
    admin = await bare_broker.connect(Role.ADMIN)
    let_go = asyncio.Event()

    async def slow(_: RawMessage) -> None:
        await let_go.wait()

    await admin.subscribe("flood", slow)
    for _ in range(100):
        await admin.publish("flood", b"")
    await until(lambda: admin.dropped_count >= 80)
    let_go.set()
