"""Following a stream on a real broker: order, outages, and streams that come back shorter or as others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from runfold.events.nats.api import Api, StreamInfo
from runfold.events.nats.consume import Delivered, Follower, parse_place
from runfold.events.nats.errors import BrokerClosed, StreamsMissing
from runfold.events.nats.inbox import Inbox, InboxMessage, InboxReset, purge_inbox
from runfold.events.nats.layout import stream_configs
from runfold.events.nats.names import Role
from runfold.events.nats.publish import Acked, publish_acked
from support.broker import ANSWER_TIMEOUT_S
from support.waiting import until

if TYPE_CHECKING:
    from runfold.events.nats.connection import Connection
    from support.broker import BrokerForTest


async def say(connection: Connection, subject: str, *texts: str) -> int:
    """Publish texts on a subject of a stream; return the last sequence."""
    sequence = 0
    for text in texts:
        answer = await publish_acked(connection, subject, text.encode(), timeout_s=ANSWER_TIMEOUT_S)
        assert isinstance(answer, Acked)
        sequence = answer.sequence
    return sequence


async def test_old_and_new_messages_in_order(broker: BrokerForTest) -> None:
    admin = await broker.connect(Role.ADMIN)
    subject = broker.names.subjects.log("r")
    await say(admin, subject, *(str(i) for i in range(1000)))
    heard: list[Delivered] = []
    follower = Follower(admin, broker.names.log, [subject], heard.append)
    follower.start()
    assert await follower.wait_caught_up(ANSWER_TIMEOUT_S)
    assert [int(message.data) for message in heard] == list(range(1000))
    await say(admin, subject, "1000")
    await until(lambda: len(heard) == 1001)
    await until(lambda: follower.caught_up)  # it says so as long as the server was heard a moment ago
    assert follower.position == heard[-1].sequence
    await follower.close()
    await say(admin, subject, "1001")
    await admin.ready()
    assert len(heard) == 1001


async def test_nothing_stored_is_caught_up(broker: BrokerForTest) -> None:
    admin = await broker.connect(Role.ADMIN)
    follower = Follower(admin, broker.names.log, [broker.names.subjects.log("r")], lambda _: None)
    follower.start()
    assert await follower.wait_caught_up(ANSWER_TIMEOUT_S)
    await follower.close()


async def test_who_waits_hears_of_it_though_more_has_come_by_then(
    broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a message and who waits for it the loop runs others: on a machine that stood still, all that is due."""

    class Fleeting(asyncio.Event):
        def set(self) -> None:
            super().set()
            self.clear()

    admin = await broker.connect(Role.ADMIN)
    follower = Follower(admin, broker.names.log, [broker.names.subjects.log("r")], lambda _: None)
    monkeypatch.setattr(follower, "_caught_up", Fleeting())
    follower.start()
    assert await follower.wait_caught_up(ANSWER_TIMEOUT_S)
    await follower.close()


@pytest.mark.parametrize("end", ["kill", "freeze"])
async def test_nothing_is_lost_or_doubled_over_an_outage(broker: BrokerForTest, end: str) -> None:
    admin = await broker.connect(Role.ADMIN)
    subject = broker.names.subjects.log("r")
    heard: list[int] = []
    follower = Follower(admin, broker.names.log, [subject], lambda message: heard.append(int(message.data)))
    follower.start()
    await say(admin, subject, *(str(i) for i in range(50)))
    await until(lambda: len(heard) == 50)
    if end == "kill":
        broker.kill()
        await until(lambda: not follower.caught_up)
        broker.restart()
    else:
        broker.running.process.send_signal(19)
        await until(lambda: not follower.caught_up)
        broker.running.process.send_signal(18)
    assert await admin.wait_up(ANSWER_TIMEOUT_S)
    other = await broker.connect(Role.ADMIN)
    await say(other, subject, *(str(i) for i in range(50, 100)))
    await until(lambda: len(heard) >= 100)
    assert await follower.wait_caught_up(ANSWER_TIMEOUT_S)
    await follower.close()
    assert heard == list(range(100))


async def test_a_callback_that_raises_sees_its_message_again(
    broker: BrokerForTest, caplog: pytest.LogCaptureFixture
) -> None:
    admin = await broker.connect(Role.ADMIN)
    subject = broker.names.subjects.log("r")
    heard: list[int] = []
    failures = [RuntimeError("once")]

    def hear(message: Delivered) -> None:
        if int(message.data) == 3 and failures:
            raise failures.pop()
        heard.append(int(message.data))

    follower = Follower(admin, broker.names.log, [subject], hear)
    follower.start()
    await say(admin, subject, *(str(i) for i in range(10)))
    await until(lambda: len(heard) == 10)
    await follower.close()
    assert heard == list(range(10))
    assert str(admin.last_error) == "once"
    assert "a bug of runfold's own" in caplog.text, "nobody else hears of it"
    assert "RuntimeError: once" in caplog.text


async def test_a_closed_connection_or_a_lost_stream_ends_it(broker: BrokerForTest) -> None:
    admin = await broker.connect(Role.ADMIN)
    follower = Follower(admin, broker.names.log, [broker.names.subjects.log("r")], lambda _: None)
    follower.start()
    assert await follower.wait_caught_up(ANSWER_TIMEOUT_S)
    await admin.close()
    with pytest.raises(BrokerClosed):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await follower.wait_ended()
    await follower.close()
    again = await broker.connect(Role.ADMIN)
    follower = Follower(again, "NO_SUCH_STREAM", ["a"], lambda _: None)
    follower.start()
    with pytest.raises(StreamsMissing):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await follower.wait_ended()
    await follower.close()


def test_places_are_read_from_short_and_long_acknowledgement_subjects() -> None:
    short = parse_place("$JS.ACK.S.C.2.17.5.1700000000000000000.3")
    assert short is not None
    assert (short.deliveries, short.sequence, short.consumer_sequence, short.pending) == (2, 17, 5, 3)
    assert parse_place("$JS.ACK._.HASH.S.C.2.17.5.1700000000000000000.3.tok") == short
    assert parse_place("$JS.ACK.S.C.x.17.5.1.3") is None
    assert parse_place("") is None


async def test_closing_at_any_moment_ends_it(broker: BrokerForTest) -> None:
    admin = await broker.connect(Role.ADMIN)
    subject = broker.names.subjects.log("r")
    await say(admin, subject, "one")
    for turns in range(60):
        follower = Follower(admin, broker.names.log, [subject], lambda _: None)
        follower.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await follower.close()
    for _ in range(60):
        follower = Follower(admin, broker.names.log, [subject], lambda _: None)
        follower.start()
        assert await follower.wait_caught_up(ANSWER_TIMEOUT_S)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await follower.close()


class Heard:
    """What an inbox delivered."""

    def __init__(self) -> None:
        self.messages: list[InboxMessage] = []
        self.resets: list[InboxReset] = []

    def inbox(self, connection: Connection, run: str, cursor: tuple[str, int] | None) -> Inbox:
        """Start reading a run's inbox."""
        inbox = Inbox(connection, run, cursor=cursor, on_message=self.messages.append, on_reset=self.resets.append)
        inbox.start()
        return inbox

    @property
    def texts(self) -> list[str]:
        """The messages' texts."""
        return [message.data.decode() for message in self.messages]


async def test_inbox_holds_facts_and_requests_of_one_run_after_its_cursor(broker: BrokerForTest) -> None:
    admin, controller = await broker.connect(Role.ADMIN), await broker.connect(Role.CONTROLLER)
    subjects = broker.names.subjects
    await say(admin, subjects.fact("r", 1, "node-a"), "one")
    await say(admin, subjects.fact("other", 1, "node-a"), "foreign")
    await say(admin, subjects.request("r", "abort"), "two")
    heard = Heard()
    inbox = heard.inbox(controller, "r", None)
    assert await inbox.wait_caught_up(ANSWER_TIMEOUT_S)
    assert heard.texts == ["one", "two"]
    assert inbox.identity is not None
    cursor = (inbox.identity, heard.messages[0].sequence)
    await inbox.close()
    again = Heard()
    inbox = again.inbox(controller, "r", cursor)
    assert await inbox.wait_caught_up(ANSWER_TIMEOUT_S)
    assert again.texts == ["two"]
    assert not again.resets
    await inbox.close()


async def test_inbox_of_another_identity_is_read_from_its_start(broker: BrokerForTest) -> None:
    admin, controller = await broker.connect(Role.ADMIN), await broker.connect(Role.CONTROLLER)
    await say(admin, broker.names.subjects.fact("r", 1, "node-a"), "one")
    heard = Heard()
    inbox = heard.inbox(controller, "r", ("another", 17))
    assert await inbox.wait_caught_up(ANSWER_TIMEOUT_S)
    assert heard.texts == ["one"]
    assert [(reset.identity, reset.last_sequence) for reset in heard.resets] == [(inbox.identity, 1)]
    await inbox.close()


async def test_inbox_shorter_than_the_cursor_is_read_from_its_start(broker: BrokerForTest) -> None:
    admin, controller = await broker.connect(Role.ADMIN), await broker.connect(Role.CONTROLLER)
    await say(admin, broker.names.subjects.fact("r", 1, "node-a"), "one")
    first = Heard()
    inbox = first.inbox(controller, "r", None)
    assert await inbox.wait_caught_up(ANSWER_TIMEOUT_S)
    assert inbox.identity is not None
    await inbox.close()
    heard = Heard()
    inbox = heard.inbox(controller, "r", (inbox.identity, 1000))
    assert await inbox.wait_caught_up(ANSWER_TIMEOUT_S)
    assert len(heard.resets) == 1
    assert "ends at 1, before 1000" in heard.resets[0].reason
    await say(admin, broker.names.subjects.fact("r", 1, "node-a"), "two")
    await until(lambda: heard.texts == ["one", "two"])
    await inbox.close()


async def test_inbox_made_anew_while_it_is_read_is_noticed(
    broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, controller = await broker.connect(Role.ADMIN), await broker.connect(Role.CONTROLLER)
    api = await broker.api()
    names = broker.names
    await say(admin, names.subjects.fact("r", 1, "node-a"), "one", "two")
    heard = Heard()
    inbox = heard.inbox(controller, "r", None)
    assert await inbox.wait_caught_up(ANSWER_TIMEOUT_S)
    configs = {config.name: config for config in stream_configs(names, storage_max_bytes=1 << 30)}
    made, asked = asyncio.Event(), Api.stream_info

    async def asked_once_made(self: Api, stream: str) -> StreamInfo | None:
        await made.wait()  # who looks in between finds none, and reads no further
        return await asked(self, stream)

    monkeypatch.setattr(Api, "stream_info", asked_once_made)
    await admin.request(f"$JS.API.STREAM.DELETE.{names.inbox}", b"", timeout_s=ANSWER_TIMEOUT_S)
    await api.create_stream(configs[names.inbox])
    made.set()
    await say(admin, names.subjects.fact("r", 1, "node-a"), "three")
    await until(lambda: heard.texts == ["one", "two", "three"])
    assert len(heard.resets) == 1
    assert heard.resets[0].identity == inbox.identity
    await inbox.close()


async def test_what_is_folded_is_purged_and_the_rest_stays(broker: BrokerForTest) -> None:
    admin, controller = await broker.connect(Role.ADMIN), await broker.connect(Role.CONTROLLER)
    subjects = broker.names.subjects
    await say(admin, subjects.fact("r", 1, "node-a"), "one", "two")
    await say(admin, subjects.fact("other", 1, "node-a"), "foreign")
    last = await say(admin, subjects.request("r", "abort"), "three")
    await say(admin, subjects.fact("r", 1, "node-a"), "four")
    assert await purge_inbox(controller, "r", last) == 3
    heard, foreign = Heard(), Heard()
    inboxes = [heard.inbox(controller, "r", None), foreign.inbox(controller, "other", None)]
    for inbox in inboxes:
        assert await inbox.wait_caught_up(ANSWER_TIMEOUT_S)
        await inbox.close()
    assert heard.texts == ["four"]
    assert foreign.texts == ["foreign"]
