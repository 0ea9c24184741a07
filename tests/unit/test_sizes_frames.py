"""What processes of one node say to each other has a largest size: beyond it is an error that says so."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from runfold.events.tasks import Task
from runfold.workers import channel, collective, hand, hubserver, lighthouse, places, ranklink
from runfold.workers.channel import RankChannel
from runfold.workers.collective import CollectiveHub, CollectiveMember
from runfold.workers.errors import LinkError
from runfold.workers.frames import HEADER, frame, read_frame
from runfold.workers.hand import Hand
from runfold.workers.heirs import SOCKET_PATH_MAX_BYTES, Door, knock
from runfold.workers.keeper import KEEPER_FRAME_MAX_BYTES, Answer, Ask
from runfold.workers.layout import StorageSpec
from runfold.workers.lighthouse import Lighthouse
from runfold.workers.limits import HANDSHAKE_FRAME_MAX_BYTES, LINK_FRAME_MAX_BYTES
from runfold.workers.link import FROM_RANK, Collect, FromRank, Refused
from runfold.workers.pipe import PIPE_FRAME_MAX_BYTES, RunnerPipe, StopNow, SupervisorPipe
from runfold.workers.places import Place, PlaceLock, find_places
from runfold.workers.ranklink import MessageTooLarge, RankLink
from runfold.workers.zygote import COMMAND_MAX_BYTES, ForkServer, Role
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runfold.workers.spawner import Spawner

PATIENCE_S = 30.0
SECRET = b"s" * 32


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends."""
    near, far = socket.socketpair()
    near.settimeout(PATIENCE_S)
    far.settimeout(PATIENCE_S)
    with near, far:
        yield near, far


# --- rank and runner


def test_a_rank_sends_nothing_that_its_runner_would_not_take(pair: tuple[socket.socket, socket.socket]) -> None:
    link = RankLink(pair[0])
    with pytest.raises(MessageTooLarge, match=f"collect: .* bytes are over the limit of {LINK_FRAME_MAX_BYTES} bytes"):
        link.send(Collect(1, "barrier", b"x" * LINK_FRAME_MAX_BYTES, None))
    small = Collect(1, "barrier", b"x", None)
    link.send(small)
    (length,) = HEADER.unpack(pair[1].recv(HEADER.size))
    assert FROM_RANK.decode(pair[1].recv(length, socket.MSG_WAITALL)) == small, "and nothing of the other"


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_runner_takes_nothing_from_a_rank_that_is_too_large(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    message = Collect(1, "barrier", b"x" * 1000, None)
    data = msgspec.msgpack.encode(message)
    monkeypatch.setattr(channel, "LINK_FRAME_MAX_BYTES", len(data) - beyond)
    heard: list[FromRank] = []
    opened = await RankChannel.open(pair[0], heard.append)
    pair[1].sendall(frame(data, len(data)))
    if beyond:
        error = await opened.ended()
        assert f"a frame of {len(data)} bytes is over the limit of {len(data) - 1} bytes" in str(error)
        assert heard == []
    else:
        await until(lambda: heard == [message])
    opened.close()


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_runner_answers_nothing_that_is_too_large_and_a_rank_takes_nothing(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    answer = Refused(1, "barrier", "mismatch", "x" * 1000)
    data = msgspec.msgpack.encode(answer)
    limit = len(data) - beyond
    monkeypatch.setattr(channel, "REPLY_FRAME_MAX_BYTES", limit)
    monkeypatch.setattr(ranklink, "REPLY_FRAME_MAX_BYTES", limit)
    words = f"a message of {len(data)} bytes is over the limit of {limit} bytes"
    near, far = socket.socketpair()
    link = RankLink(far)
    opened = await RankChannel.open(near, lambda _: None)
    if beyond:
        with pytest.raises(LinkError, match=words):
            opened.send(answer)
        near_raw, far_raw = pair
        near_raw.sendall(frame(data, len(data)))
        with pytest.raises(LinkError, match=words):
            RankLink(far_raw).receive(PATIENCE_S)
    else:
        opened.send(answer)
        assert await asyncio.to_thread(link.receive, PATIENCE_S) == answer
    opened.close()
    await opened.ended()
    far.close()


# --- supervisor and runner


@pytest.mark.parametrize("beyond", [0, 1])
async def test_what_a_supervisor_says_to_a_runner_has_a_largest_size(
    pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture, beyond: int
) -> None:
    room = PIPE_FRAME_MAX_BYTES - len(msgspec.msgpack.encode(StopNow(reason="", grace_s=1.0))) - 2
    word = StopNow(reason="x" * (room + beyond), grace_s=1.0)
    runner = await SupervisorPipe.open(pair[1])
    ours = RunnerPipe(pair[0])
    if not beyond:
        ours.send(word)
        assert await runner.receive() == word
    else:
        ours.send(word)
        told = f"a message of {PIPE_FRAME_MAX_BYTES + 1} bytes is over the limit of {PIPE_FRAME_MAX_BYTES} bytes"
        assert f"a runner cannot be told its StopNow: {told}" in caplog.text
        ours.send(StopNow(reason="short", grace_s=1.0))
        assert await runner.receive() == StopNow(reason="short", grace_s=1.0), "and nothing of the other"
    runner.close()


async def test_what_is_too_large_to_be_of_the_supervisor_is_no_word_of_its(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    runner = await SupervisorPipe.open(pair[1])
    pair[0].sendall(HEADER.pack(PIPE_FRAME_MAX_BYTES + 1))
    assert await runner.receive() is None
    runner.close()


async def test_the_door_of_a_runner_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("name" * 20)
    folder.mkdir(parents=True)
    path = folder / "door"
    assert len(os.fsencode(path)) > SOCKET_PATH_MAX_BYTES
    door = await Door.open(path, b"of the group")
    knocking = await knock(path, os.getpid())
    assert await knocking.secret() == b"of the group"
    knocking.close()
    door.close()


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_file_of_a_place_is_read_up_to_a_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    place = Place(run="digits-1", pool="local", node="local", source="local", attempt=3, pid=1, started=None, slots=2)
    monkeypatch.setattr(places, "PLACE_MAX_BYTES", len(msgspec.json.encode(place)) - beyond)
    lock = PlaceLock.take(tmp_path, place)
    assert [found for _, found in find_places(tmp_path)] == [place] * (1 - beyond)
    assert len(list(tmp_path.glob("*.json"))) == 1, "it is held, so it stays"
    lock.release()


# --- fork servers, keepers, the lighthouse


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_fork_server_ends_with_a_word_about_a_command_that_is_too_large(
    pair: tuple[socket.socket, socket.socket], capfd: pytest.CaptureFixture[str], beyond: int
) -> None:
    server = ForkServer(pair[1], lambda *_: 0, Role.RANKS)
    pair[0].sendall(HEADER.pack(COMMAND_MAX_BYTES + beyond))
    pair[0].shutdown(socket.SHUT_WR)
    assert not server._turn()
    said = f"a command of {COMMAND_MAX_BYTES + 1} bytes is over the limit of {COMMAND_MAX_BYTES} bytes"
    assert (said in capfd.readouterr().err) == bool(beyond)
    os.close(server._wake_read)
    os.close(server._wake_write)


class _Mortal:
    """Starts keepers of which the first `deaths` die over what they are asked."""

    def __init__(self, deaths: int) -> None:
        self.deaths, self.started = deaths, 0
        self.tasks: list[asyncio.Task[None]] = []

    async def spawn(self, spec: bytes, fds: dict[str, int]) -> _Mortal:
        self.started += 1
        sock = socket.socket(fileno=os.dup(fds["link"]))
        self.tasks.append(asyncio.create_task(self._keep(sock, dies=self.started <= self.deaths)))
        return self

    async def _keep(self, sock: socket.socket, *, dies: bool) -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        await read_frame(reader, KEEPER_FRAME_MAX_BYTES)
        if not dies:
            writer.write(frame(msgspec.msgpack.encode(Answer(value="done")), KEEPER_FRAME_MAX_BYTES))
            await writer.drain()
        writer.close()

    ended = None

    async def kill(self, number: int) -> None:
        """It has ended already."""


@pytest.mark.parametrize("deaths", [hand.TRIES_MAX - 1, hand.TRIES_MAX])
async def test_a_keeper_that_dies_over_a_task_is_replaced_so_often(deaths: int) -> None:
    mortal = _Mortal(deaths)
    asking = Hand(cast("Spawner", mortal))
    answer = await asking.ask(_ask(), PATIENCE_S)
    if deaths == hand.TRIES_MAX:
        assert answer.error is not None
        assert (answer.error.type, answer.error.message) == ("KeeperLost", "the process that does it ended, twice")
    else:
        assert (answer.value, answer.error) == ("done", None)
    assert mortal.started == hand.TRIES_MAX
    await asking.close()
    await asyncio.gather(*mortal.tasks)


def _ask() -> Ask:
    return Ask(task=Task(id="seal-1", kind="seal"), run="digits-1", spec=StorageSpec(url="/nowhere", name="digits"))


async def test_a_lighthouse_is_told_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    mortal = _Mortal(1)
    lamp = Lighthouse(cast("Spawner", mortal), "127.0.0.1", lambda _: None)
    with pytest.raises(LinkError, match=f"is over the limit of {lighthouse.FRAME_MAX_BYTES} bytes"):
        await lamp._shine({"name": "x" * lighthouse.FRAME_MAX_BYTES})
    await asyncio.gather(*mortal.tasks, return_exceptions=True)
    await lamp.close()


# --- the hub


async def test_a_claim_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubserver, "HUB_HANDSHAKE_TIMEOUT_S", 3600.0)
    hub = CollectiveHub(1, lambda *_: None)
    port = await hub.listen(SECRET)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEADER.pack(HANDSHAKE_FRAME_MAX_BYTES + 1))
    async with asyncio.timeout(PATIENCE_S):
        assert b"challenge" in await reader.read(), "and then the end"
    writer.close()
    await hub.close()


async def test_a_challenge_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("HUB_CONNECT_TIMEOUT_S", "HUB_HANDSHAKE_TIMEOUT_S"):
        monkeypatch.setattr(collective, limit, 60.0)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEADER.pack(HANDSHAKE_FRAME_MAX_BYTES + 1))
        await writer.drain()
        # From Python 3.12 on a server that ends waits for its connections.
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        member = CollectiveMember("node-b", (1, 2), lambda *_: None)
        with pytest.raises(LinkError, match=f"is over the limit of {HANDSHAKE_FRAME_MAX_BYTES} bytes"):
            await member.connect("127.0.0.1", server.sockets[0].getsockname()[1], SECRET)
        await member.close()
