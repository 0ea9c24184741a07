"""What only the log on JetStream can meet: message ids, outages, limits of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.events.entry import GENESIS, hash_entry
from runfold.events.limits import ENTRY_MAX_BYTES
from runfold.events.log import Appended, LogUnavailable
from runfold.events.nats.connection import PENDING_NONE
from runfold.events.nats.errors import ApiRefused
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.nats.publish import MSG_ID, Acked, publish_acked
from support.broker import ANSWER_TIMEOUT_S
from support.log_rig import Chain
from support.waiting import until

if TYPE_CHECKING:
    from support.broker import BrokerForTest


async def test_our_message_id_on_another_subject_does_not_swallow_our_entry(broker: BrokerForTest) -> None:
    admin = await broker.connect(Role.ADMIN)
    data = Chain().entry(0)
    headers = {MSG_ID: f"r.1.0.{hash_entry(data)}"}
    thief = await publish_acked(
        admin, broker.names.subjects.log("other"), b"thief", headers, timeout_s=ANSWER_TIMEOUT_S
    )
    assert isinstance(thief, Acked)
    log = JetStreamLog(await broker.connect(Role.CONTROLLER), "r", append_timeout_s=ANSWER_TIMEOUT_S)
    outcome = await log.append(data, n=0, digest=hash_entry(data), prev=GENESIS, last_sequence=0)
    assert isinstance(outcome, Appended)
    assert outcome.sequence > thief.sequence
    assert [stored.data async for stored in log.read()] == [data]


async def test_the_message_id_names_run_generation_number_and_hash(broker: BrokerForTest) -> None:
    data = Chain().entry(0)
    log = JetStreamLog(await broker.connect(Role.CONTROLLER), "r", append_timeout_s=ANSWER_TIMEOUT_S)
    await log.append(data, n=0, digest=hash_entry(data), prev=GENESIS, last_sequence=0)
    found = await (await broker.api()).last_message(broker.names.log, "runfold.run.r.log.1")
    assert found is not None
    assert found.headers[MSG_ID] == f"r.1.0.{hash_entry(data)}"
    assert found.headers["Nats-Expected-Last-Subject-Sequence"] == "0"


@pytest.mark.parametrize("times", range(3))
async def test_an_append_over_a_killed_server_is_made_once(broker: BrokerForTest, times: int) -> None:
    controller = await broker.connect(Role.CONTROLLER, pending_max_bytes=PENDING_NONE)
    log = JetStreamLog(controller, "r", append_timeout_s=0.5)
    chain, prev, last = Chain(), GENESIS, 0
    for n in range(20):
        data = chain.entry(n, prev)
        if n == 10:
            broker.kill()
            with pytest.raises(LogUnavailable):
                await log.append(data, n=n, digest=hash_entry(data), prev=prev, last_sequence=last)
            broker.restart()
        while True:
            try:
                outcome = await log.append(data, n=n, digest=hash_entry(data), prev=prev, last_sequence=last)
            except LogUnavailable:
                assert await controller.wait_up(ANSWER_TIMEOUT_S)
                continue
            break
        assert isinstance(outcome, Appended)
        prev, last = hash_entry(data), outcome.sequence
    messages = [stored.data async for stored in log.read()]
    assert len(messages) == 20
    assert hash_entry(messages[-1]) == prev


async def test_reading_a_log_while_the_server_is_away_is_said(broker: BrokerForTest) -> None:
    controller = await broker.connect(Role.CONTROLLER, pending_max_bytes=PENDING_NONE)
    log = JetStreamLog(controller, "r")
    broker.kill()
    await until(lambda: not controller.is_up)
    with pytest.raises(LogUnavailable):
        await log.last_sequence()
    with pytest.raises(LogUnavailable):
        [stored async for stored in log.read()]


async def test_an_entry_of_the_largest_size_is_stored_and_a_larger_one_refused(broker: BrokerForTest) -> None:
    log = JetStreamLog(await broker.connect(Role.CONTROLLER), "r", append_timeout_s=ANSWER_TIMEOUT_S)
    largest, larger = b"x" * ENTRY_MAX_BYTES, b"x" * (ENTRY_MAX_BYTES + 8192)
    with pytest.raises(ApiRefused, match="message size exceeds"):
        await log.append(larger, n=0, digest=hash_entry(larger), prev=GENESIS, last_sequence=0)
    outcome = await log.append(largest, n=0, digest=hash_entry(largest), prev=GENESIS, last_sequence=0)
    assert isinstance(outcome, Appended)
    assert [stored.data async for stored in log.read()] == [largest]
    assert log.strays_count == 0
