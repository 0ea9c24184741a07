"""Streams that are full: they refuse loudly, what waits for room goes on when there is some."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from runfold.client import Client, open_client
from runfold.errors import NotAcceptedError
from runfold.events.entry import decode_entry
from runfold.events.fold import fold_all
from runfold.events.job import Job
from runfold.events.log import LogFull
from runfold.events.nats.api import Api
from runfold.events.nats.connection import Connection
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.nats.streams import provision
from runfold.locate import Address
from support.broker import ANSWER_TIMEOUT_S, BrokerForTest
from support.controller import Observer, controller
from support.groups import RUN, Group, asked
from support.waiting import until

ROOM_BYTES = 8 * 1024 * 1024
PADDING_BYTES = 64 * 1024


async def crammed(broker: BrokerForTest) -> Api:
    """A broker whose streams have little room."""
    api = await broker.api()
    await provision(api, broker.names, storage_max_bytes=ROOM_BYTES)
    return api


async def cram(observer: Observer, admin: Connection, subject: str, data: bytes) -> None:
    """Publish until it is refused."""
    while True:
        try:
            await observer.publish(subject, data, admin)
        except AssertionError:
            return


async def test_a_controller_waits_for_room_in_the_log_and_goes_on(bare_broker: BrokerForTest) -> None:
    broker = bare_broker
    api = await crammed(broker)
    admin = await broker.connect(Role.ADMIN)
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        await observer.submit(asked())
        await observer.assignment(RUN)
        filler = JetStreamLog(admin, "filler", append_timeout_s=ANSWER_TIMEOUT_S)
        subject = broker.names.subjects.log("filler")
        for size in (PADDING_BYTES, 512):  # until not even an entry fits
            await cram(observer, admin, subject, b"x" * size)
        info = await api.stream_info(broker.names.inbox)
        assert info is not None
        before = info.state.last_seq
        group = Group(await broker.connect(Role.WORKER), observer)
        training = asyncio.create_task(group.trains())
        await until(lambda: _grew(api, broker, before))
        assert len(await observer.entries(RUN)) == 1
        last = await filler.last_sequence()
        with pytest.raises(LogFull):
            await filler.append(b"y" * PADDING_BYTES, n=0, digest="", prev="", last_sequence=last)
        await api.purge_all(broker.names.log, subject)
        await training
        await group.finishes()
    log = [decode_entry(stored.data) async for stored in JetStreamLog(observer.connection, RUN).read()]
    assert fold_all(log).terminal


async def _grew(api: Api, broker: BrokerForTest, before: int) -> bool:
    info = await api.stream_info(broker.names.inbox)
    return info is not None and info.state.last_seq > before


async def test_a_submitter_is_told_that_the_queue_is_full(bare_broker: BrokerForTest) -> None:
    broker = bare_broker
    await crammed(broker)
    address = Address(broker.running.url(Role.CLIENT), broker.names.namespace, local=True)
    async with open_client(address) as client:
        with pytest.raises(NotAcceptedError, match="the broker did not take the job: maximum bytes exceeded"):
            await submit_on(client)


async def submit_on(client: Client) -> None:
    """Submit large jobs until one is refused."""
    for k in count():
        await client.submit(Job(id=f"large-{k}", entrypoint="x:y", env={"PAD": "p" * PADDING_BYTES}))
