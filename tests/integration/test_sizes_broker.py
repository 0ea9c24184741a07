"""What one connection, one batch and one broker hold is limited: each limit is reached, and is said."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from runfold.events.entry import GENESIS, hash_entry
from runfold.events.log import Appended, LogUnavailable
from runfold.events.nats.api import Api, StreamConfig
from runfold.events.nats.broker import start_broker
from runfold.events.nats.connection import connect
from runfold.events.nats.direct import read_batch
from runfold.events.nats.errors import ApiRefused, BrokerStartFailed, BrokerUnreachable, Unanswered
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.nats.publish import Acked, publish_acked
from runfold.events.nats.settings import choose_port
from support.broker import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, BrokerForTest
from support.log_rig import Chain
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from runfold.events.nats.client import RawMessage
    from runfold.events.nats.connection import Connection

LITTLE_BYTES = 10_000
PIECE = b"x" * 1000


# --- of a connection


async def test_what_a_connection_keeps_for_later_has_a_limit_and_beyond_it_the_caller_is_told(
    bare_broker: BrokerForTest,
) -> None:
    keeps = await bare_broker.connect(Role.ADMIN, pending_max_bytes=LITTLE_BYTES)
    heard: list[bytes] = []

    async def hear(message: RawMessage) -> None:
        heard.append(message.data)

    await keeps.subscribe("said", hear)
    bare_broker.kill()
    await until(lambda: not keeps.is_up)
    taken: list[bytes] = []

    async def say_on() -> None:
        while True:
            data = b"%d " % len(taken) + PIECE
            await keeps.publish("said", data)
            taken.append(data)

    with pytest.raises(Unanswered, match="the connection is down"):
        await say_on()
    assert LITTLE_BYTES // 2 < sum(map(len, taken)) <= LITTLE_BYTES
    bare_broker.restart()
    assert await keeps.wait_up(ANSWER_TIMEOUT_S)
    await until(lambda: heard == taken)


async def test_bytes_that_a_callback_cannot_take_in_time_are_counted(
    bare_broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runfold.events.nats.connection.SUBSCRIPTION_MAX_BYTES", LITTLE_BYTES)
    admin, other = await bare_broker.connect(Role.ADMIN), await bare_broker.connect(Role.ADMIN)
    gate, heard = asyncio.Event(), list[bytes]()

    async def hear(message: RawMessage) -> None:
        await gate.wait()
        heard.append(message.data)

    await admin.subscribe("much", hear)
    await admin.ready()
    for _ in range(30):
        await other.publish("much", PIECE)
    await other.ready()
    await until(lambda: admin.dropped_count > 0)
    await admin.ready()
    gate.set()
    await until(lambda: len(heard) + admin.dropped_count == 30)
    assert len(heard) <= LITTLE_BYTES // len(PIECE) + 1


async def test_a_server_that_stands_still_is_lost_after_so_many_pings(
    bare_broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runfold.events.nats.connection.PING_EVERY_S", 0.1)
    patient = await bare_broker.connect(Role.ADMIN)
    assert patient.is_up
    pid = bare_broker.running.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: not patient.is_up)
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(lambda: patient.generation >= 1)
    assert await patient.wait_up(ANSWER_TIMEOUT_S)


# --- of what is read at once


@pytest.mark.parametrize(
    ("name", "limit", "first"), [("BATCH_MAX_COUNT", 3, 3), ("BATCH_MAX_BYTES", 4 * len(PIECE), 4)]
)
async def test_a_long_log_is_read_in_several_batches(
    broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch, name: str, limit: int, first: int
) -> None:
    monkeypatch.setattr(f"runfold.events.nats.direct.{name}", limit)
    admin = await broker.connect(Role.ADMIN)
    subject = broker.names.subjects.log("r")
    said = [b"%d " % k + PIECE for k in range(11)]
    for data in said:
        assert isinstance(await publish_acked(admin, subject, data, timeout_s=ANSWER_TIMEOUT_S), Acked)
    assert 0 < len(await read_batch(admin, broker.names.log, subject, 1)) <= first
    assert [stored.data async for stored in JetStreamLog(admin, "r").read()] == said


# --- of what stands in the way


@pytest.mark.parametrize("strays", [2, 3])
async def test_strays_that_keep_coming_are_stepped_over_so_often_and_then_it_is_said(
    broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch, strays: int
) -> None:
    monkeypatch.setattr("runfold.events.nats.log.STRAYS_PER_APPEND_MAX", 3)
    admin = await broker.connect(Role.ADMIN)
    log = JetStreamLog(await broker.connect(Role.CONTROLLER), "r", append_timeout_s=ANSWER_TIMEOUT_S)
    left = [b"stray"] * strays

    async def first_a_stray(
        connection: Connection, subject: str, data: bytes, headers: Mapping[str, str], *, timeout_s: float
    ) -> object:
        if left:
            await publish_acked(admin, subject, left.pop(), timeout_s=timeout_s)
        return await publish_acked(connection, subject, data, headers, timeout_s=timeout_s)

    monkeypatch.setattr("runfold.events.nats.log.publish_acked", first_a_stray)
    entry = Chain().entry(0)

    async def append() -> object:
        return await log.append(entry, n=0, digest=hash_entry(entry), prev=GENESIS, last_sequence=0)

    if strays == 3:
        with pytest.raises(LogUnavailable, match=r"strays keep arriving on .*: entry 0 is not appended yet"):
            await append()
        assert [stored.data async for stored in log.read()] == [b"stray"] * 3
    assert isinstance(await append(), Appended)
    assert [stored.data async for stored in log.read()] == [*[b"stray"] * strays, entry]
    assert log.strays_count == strays


# --- of a broker


async def test_a_broker_holds_so_many_streams_and_consumers_and_refuses_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runfold.events.nats.serverconf.STREAMS_MAX_COUNT", 2)
    monkeypatch.setattr("runfold.events.nats.serverconf.CONSUMERS_MAX_COUNT", 2)
    started = BrokerForTest(tmp_path / "data")
    try:
        api: Api = await started.api()
        for name in ("one", "two"):
            await api.create_stream(StreamConfig(name=name, subjects=(name,), max_bytes=LITTLE_BYTES))
        with pytest.raises(ApiRefused, match="maximum number of streams reached"):
            await api.create_stream(StreamConfig(name="three", subjects=("three",), max_bytes=LITTLE_BYTES))
        for name in ("c1", "c2"):
            await api.create_consumer("one", name, {"ack_policy": "none"})
        with pytest.raises(ApiRefused, match="maximum consumers limit reached"):
            await api.create_consumer("one", "c3", {"ack_policy": "none"})
        assert await api.stream_info("one") is not None
    finally:
        await started.close()


async def test_the_brokers_own_log_is_cut_into_files_of_which_so_many_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4096
    monkeypatch.setattr("runfold.events.nats.serverconf.LOG_FILE_MAX_BYTES", size)
    monkeypatch.setattr("runfold.events.nats.serverconf.LOG_FILES_MAX_COUNT", 3)
    started = BrokerForTest(tmp_path / "data")
    folder = started.running.folder
    names: set[str] = set()
    try:
        url = started.running.url(Role.ADMIN).replace("@", "x@")
        while len(names) < 6:
            with pytest.raises(BrokerUnreachable):
                await connect(url, role=Role.ADMIN, name="stranger", connect_timeout_s=CONNECT_TIMEOUT_S)
            names |= {path.name for path in folder.glob("nats-server.log*")}
        # Its oldest file goes a moment after the newest has begun.
        await until(lambda: len(list(folder.glob("nats-server.log*"))) <= 3)
        assert all(path.stat().st_size < 2 * size for path in folder.glob("nats-server.log*"))
    finally:
        await started.close()


@pytest.mark.parametrize("taken", [1, 2])
def test_a_port_that_was_taken_meanwhile_is_chosen_anew_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    monkeypatch.setattr("runfold.events.nats.broker.FRESH_PORT_TRIES_MAX", 2)
    with ExitStack() as others:
        busy = [others.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(taken)]
        ports = [int(one.getsockname()[1]) for one in busy]
        chosen: list[int] = []

        def choose() -> int:
            # The free one is chosen when it is asked for: others on this machine choose theirs meanwhile.
            chosen.append(ports[len(chosen)] if len(chosen) < taken else choose_port())
            return chosen[-1]

        monkeypatch.setattr("runfold.events.nats.settings.choose_port", choose)
        if taken == 2:
            with pytest.raises(BrokerStartFailed, match="address already in use"):
                start_broker(tmp_path)
            assert chosen == ports
            assert not list(tmp_path.rglob("port")), "none is kept: the next start chooses anew"
            monkeypatch.undo()
            start_broker(tmp_path).stop()
        else:
            broker = start_broker(tmp_path)
            try:
                assert chosen == [*ports, broker.port]
            finally:
                broker.stop()
