"""A broker that takes what is said and never answers is waited for so long and no longer. In virtual time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest

from runfold.events.nats import api, blobs, cells, connection, consume, jobs, output
from runfold.events.nats.connection import Connection, connect
from runfold.events.nats.errors import BrokerUnreachable, Unanswered
from runfold.events.nats.names import Role
from runfold.workers import main, runner
from runfold.workers.pipe import RunnerSpec
from runfold.workers.supervisor import SupervisorConfig
from runfold.workers.ties import Ties
from support.silent import NO_MESSAGE, Answer, SilentConnection, SilentServer, passed
from support.waiting import until

Story = Callable[[SilentConnection], Coroutine[None, None, object]]
STREAM = {"config": {"name": "RF_LOG"}, "state": {}, "created": "2026-11-30T05:35:00Z"}
URL = "nats://127.0.0.1:1"
JOB = jobs.JobMessage(b"", 1, 1, "$JS.ACK.RF_JOBS.controllers.1.1.1.0.0")

WAITS: dict[str, tuple[Story, float]] = {
    "a question": (lambda c: api.Api(c).stream_info("RF_LOG"), api.API_TIMEOUT_S),
    "a value": (lambda c: cells.status_cells(c).put("digits", b"{}", expected=0), cells.PUT_TIMEOUT_S),
    "its removal": (lambda c: cells.status_cells(c).delete("digits", expected=1), cells.PUT_TIMEOUT_S),
    "all values": (lambda c: cells.status_cells(c).read_all(), cells.READ_TIMEOUT_S),
    "a job done": (lambda c: jobs.Jobs(c).ack(JOB), jobs.ACK_TIMEOUT_S),
    "a job refused": (lambda c: jobs.Jobs(c).term(JOB), jobs.ACK_TIMEOUT_S),
    "output": (lambda c: output.publish_output(c, "digits", 1, 0, b"{}"), output.ANSWER_TIMEOUT_S),
    "being heard": (lambda c: c.ready(), connection.CONNECT_TIMEOUT_S),
}


@pytest.mark.parametrize("what", WAITS)
def test_what_is_not_answered_is_said_to_be_unanswered_after_its_limit(what: str) -> None:
    story, limit_s = WAITS[what]
    outcome, after_s = passed(story)
    assert isinstance(outcome, Unanswered)
    assert f"within {limit_s:g} s" in str(outcome)
    assert after_s == pytest.approx(limit_s)


def test_answers_of_the_queue_of_jobs_wait_up_to_a_number() -> None:
    async def story(c: SilentConnection) -> list[bool]:
        queue = jobs.Jobs(c)
        asking = asyncio.ensure_future(queue.next())
        await until(lambda: bool(c.server_side.said))
        (hear,) = c.server_side.callbacks.values()
        nothing = Answer("_INBOX", b"", headers={"Status": "404"})
        hearing = [asyncio.ensure_future(hear(nothing)) for _ in range(jobs.ARRIVED_MAX_COUNT + 2)]
        assert await asking is None
        await asyncio.sleep(1)
        waiting = [one.done() for one in hearing]
        assert await queue.next() is None
        await asyncio.gather(*hearing)
        return waiting

    heard, _ = passed(story)
    assert heard == [True] * (jobs.ARRIVED_MAX_COUNT + 1) + [False]


def test_a_blob_is_sent_again_and_again_until_its_limit() -> None:
    async def story(c: SilentConnection) -> list[float]:
        with pytest.raises(Unanswered, match="not stored within 30 s"):
            await blobs.Blobs(c).put(b"bytes")
        return [at_s for subject, at_s in c.server_side.said if subject.startswith("$O.")]

    sent, after_s = passed(story, {"STREAM.MSG.GET": NO_MESSAGE})
    again_s = blobs.ANSWER_TIMEOUT_S + blobs.RETRY_EVERY_S
    assert sent == pytest.approx([0.0, again_s, 2 * again_s, 3 * again_s, 4 * again_s, 5 * again_s])
    assert after_s == pytest.approx(blobs.PUT_TIMEOUT_S)


def test_a_connection_is_closed_although_the_server_takes_nothing_more() -> None:
    _, after_s = passed(lambda c: c.close())
    assert after_s == pytest.approx(2 * connection.CLOSE_TIMEOUT_S), "once for what is queued, once for the end"


@pytest.fixture
def _nobody_greets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "Client", lambda: SilentServer(is_connected=False))


@pytest.mark.usefixtures("_nobody_greets")
@pytest.mark.parametrize(
    ("connecting", "limit_s"),
    [
        (lambda: connect(URL, role=Role.CLIENT, name="test"), connection.CONNECT_TIMEOUT_S),
        (lambda: main._connected(SupervisorConfig(url=URL)), main.CONNECT_TIMEOUT_S),
    ],
)
def test_a_first_connection_is_waited_for_so_long(
    connecting: Callable[[], Coroutine[None, None, Connection]], limit_s: float
) -> None:
    outcome, after_s = passed(lambda _: connecting())
    assert isinstance(outcome, BrokerUnreachable)
    assert str(outcome) == f"no broker answered at {URL} within {limit_s:g} s"
    assert after_s == pytest.approx(limit_s)


@pytest.mark.usefixtures("_nobody_greets")
def test_a_runner_tries_again_soon_and_can_be_told_to_stop_meanwhile() -> None:
    async def story(_: SilentConnection) -> object:
        stopping = asyncio.Event()
        each_s = runner.CONNECT_TIMEOUT_S + runner.CONNECT_RETRY_S
        asyncio.get_running_loop().call_later(3 * each_s - runner.CONNECT_RETRY_S / 2, stopping.set)
        spec = SimpleNamespace(url=URL, run="digits", node="node-a", namespace="runfold")
        return await runner._connected(cast("RunnerSpec", spec), cast("Ties", SimpleNamespace(stopping=stopping)))

    outcome, after_s = passed(story)
    assert outcome is None
    assert after_s == pytest.approx(3 * runner.CONNECT_TIMEOUT_S + 2.5 * runner.CONNECT_RETRY_S)


async def test_a_server_that_does_not_greet_is_left_for_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TCP_CONNECT_TIMEOUT_S", 0.05)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setblocking(False)
        url = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        opening = asyncio.create_task(connect(url, role=Role.CLIENT, name="test", connect_timeout_s=60.0))
        async with asyncio.timeout(30):
            taken = [(await asyncio.get_running_loop().sock_accept(listening))[0] for _ in range(2)]
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        for one in taken:
            one.close()
    assert len(taken) == 2, "without a limit the first try would never end"


def test_a_consumer_that_has_fallen_silent_is_made_anew() -> None:
    async def story(c: SilentConnection) -> list[float]:
        follower = consume.Follower(c, "RF_LOG", ["rf.>"], lambda _: None)
        follower.start()
        await asyncio.sleep(10.0)
        await follower.close()
        return [at_s for subject, at_s in c.server_side.said if "CONSUMER.CREATE" in subject]

    made = {"name": "consumer"}
    times, _ = passed(story, {"STREAM.INFO": STREAM, "CONSUMER.CREATE": made})
    assert isinstance(times, list)
    assert len(times) > 2
    pauses = [after - before for before, after in pairwise(times)]
    look_s = consume.IDLE_HEARTBEAT_S + consume.RETRY_EVERY_S
    assert all(consume.SILENCE_MAX_S < pause <= consume.SILENCE_MAX_S + look_s + 0.001 for pause in pauses)
