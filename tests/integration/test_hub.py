"""Collectives between runners over TCP: local ranks and other runners' ranks are members of one hub."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from runfold.workers import collective
from runfold.workers.collective import START, CollectiveHub, CollectiveMember, Collectives
from runfold.workers.errors import LinkError
from runfold.workers.link import Collect, Collected, Refused
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECRET = b"s" * 32
HOST = "127.0.0.1"


class Nodes:
    """A hub with rank 0 and a member with ranks 1 and 2; what each rank was answered."""

    def __init__(self) -> None:
        self.answers: dict[int, list[Collected | Refused]] = {0: [], 1: [], 2: []}
        self.hub = CollectiveHub(3, self._on_hub)
        self.member = CollectiveMember("node-b", (1, 2), self._on_member)

    def _on_hub(self, rank: int, answer: Collected | Refused) -> None:
        assert rank == 0
        self.answers[rank].append(answer)

    def _on_member(self, rank: int, answer: Collected | Refused) -> None:
        assert rank in (1, 2)
        self.answers[rank].append(answer)

    def of(self, rank: int) -> Collectives:
        return self.hub if rank == 0 else self.member

    async def connect(self) -> int:
        port = await self.hub.listen(SECRET)
        await self.member.connect(HOST, port, SECRET)
        return port

    async def answered(self, rank: int) -> Collected | Refused:
        await until(lambda: bool(self.answers[rank]))
        return self.answers[rank].pop(0)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    yield made
    await made.member.close()
    await made.hub.close()


async def test_ranks_of_two_nodes_start_together_and_gather(nodes: Nodes) -> None:
    # Entered before the connection stands: kept for it.
    nodes.member.arrive(2, START)
    await nodes.connect()
    nodes.hub.arrive(0, START)
    nodes.member.arrive(1, START)
    assert [await nodes.answered(rank) for rank in range(3)] == [Collected(0, [])] * 3
    big = 2_000_000
    for rank in (2, 0, 1):
        nodes.of(rank).arrive(rank, Collect(1, "all_gather", bytes([rank]) * big, None))
    expected = Collected(1, [bytes([rank]) * big for rank in range(3)])
    assert [await nodes.answered(rank) for rank in range(3)] == [expected] * 3


async def test_a_timeout_reaches_the_ranks_of_all_nodes(nodes: Nodes) -> None:
    await nodes.connect()
    nodes.member.arrive(1, Collect(1, "barrier", None, 0.05))
    nodes.hub.arrive(0, Collect(1, "barrier", None, None))
    for rank in (0, 1):
        answer = await nodes.answered(rank)
        assert isinstance(answer, Refused)
        assert (answer.error, answer.missing_ranks) == ("timeout", (2,))


async def test_a_rank_that_leaves_another_node_is_named(nodes: Nodes) -> None:
    await nodes.connect()
    nodes.hub.arrive(0, Collect(1, "barrier", None, None))
    nodes.member.leave(2, "exited with code 3")
    answer = await nodes.answered(0)
    assert isinstance(answer, Refused)
    assert "rank 2 exited with code 3" in answer.message


async def test_a_lost_runner_takes_its_ranks_with_it(nodes: Nodes) -> None:
    await nodes.connect()
    nodes.hub.arrive(0, Collect(1, "barrier", None, None))
    await nodes.member.close()
    answer = await nodes.answered(0)
    assert isinstance(answer, Refused)
    assert answer.error == "peer"
    assert "rank 1 was on node-b, to whose runner the connection is lost" in answer.message


async def test_a_bug_that_ends_a_connection_is_told_of(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def attend(*_: object) -> None:
        raise RuntimeError("nobody knows why")

    monkeypatch.setattr(nodes.hub, "attend", attend)
    with caplog.at_level(logging.ERROR):
        await nodes.connect()
        await until(lambda: "a connection of another runner: a bug of runfold's own" in caplog.text)
    assert "RuntimeError: nobody knows why" in caplog.text


async def test_a_lost_hub_is_told_to_all_that_wait_and_all_that_come(nodes: Nodes) -> None:
    await nodes.connect()
    nodes.member.arrive(1, Collect(1, "barrier", None, None))
    await nodes.hub.close()
    first = await nodes.answered(1)
    nodes.member.arrive(2, Collect(1, "barrier", None, None))
    second = await nodes.answered(2)
    for answer in (first, second):
        assert isinstance(answer, Refused)
        assert answer.error == "peer"
        assert "the connection to the runner of rank 0 is lost" in answer.message


async def test_a_hub_that_ends_while_others_are_there_is_no_trouble(nodes: Nodes) -> None:
    troubles: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: troubles.append(context))
    await nodes.connect()
    await nodes.hub.close()
    nodes.member.arrive(1, Collect(1, "barrier", None, None))
    assert isinstance(await nodes.answered(1), Refused)
    assert troubles == []


async def test_another_secret_is_let_in_nowhere(nodes: Nodes) -> None:
    port = await nodes.hub.listen(SECRET)
    with pytest.raises(LinkError, match="not convinced"):
        await nodes.member.connect(HOST, port, b"another")
    # The hub is unharmed and still takes in the right one.
    await nodes.member.connect(HOST, port, SECRET)


async def test_a_stranger_that_sends_anything_is_dropped(nodes: Nodes) -> None:
    port = await nodes.connect()
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x01\xc1", b"\xff\xff\xff\xff"):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(said)
        async with asyncio.timeout(30):
            # The challenge, then the end.
            assert b"challenge" in await reader.read()
        writer.close()
    for rank in range(3):
        nodes.of(rank).arrive(rank, START)
    assert isinstance(await nodes.answered(1), Collected)


async def test_a_hub_that_is_not_there_is_waited_for_so_long_and_no_longer(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "HUB_CONNECT_TIMEOUT_S", 0.3)
    with socket.socket() as held:
        held.bind((HOST, 0))  # nobody listens there, and nobody else can
        with pytest.raises(LinkError, match=r"within 0\.3 s"):
            await nodes.member.connect(HOST, held.getsockname()[1], SECRET)
