"""The door of a runner that lost its supervisor: whoever knocks last is heard, and nobody else."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from runfold.workers.errors import LinkError
from runfold.workers.heirs import Door, knock
from runfold.workers.pipe import RunnerPipe, StopNow, SupervisorPipe

STOP = StopNow(reason="a test", grace_s=1.0)


def closed(*what: Door | RunnerPipe | SupervisorPipe) -> None:
    for one in what:
        one.close()


async def test_of_several_that_knock_the_newest_is_heard(tmp_path: Path) -> None:
    door = await Door.open(tmp_path / "door")
    pipes = [await knock(tmp_path / "door", os.getpid()) for _ in range(3)]
    first = await door.heir(30)
    assert first is not None
    heard = [first]
    while (heir := await door.heir(0.2)) is not None:
        heard.append(heir)
    pipes[-1].send(STOP)
    assert await heard[-1].receive() == STOP
    for older in heard[:-1]:
        assert await older.receive() is None
    closed(door, *pipes, *heard)


async def test_the_word_of_the_one_before_ends_when_another_knocks(tmp_path: Path) -> None:
    door = await Door.open(tmp_path / "door")
    first = await knock(tmp_path / "door", os.getpid())
    before = await door.heir(30)
    assert before is not None
    door.attend(before)
    second = await knock(tmp_path / "door", os.getpid())
    assert await before.receive() is None
    after = await door.heir(30)
    assert after is not None
    second.send(STOP)
    assert await after.receive() == STOP
    closed(door, first, second, before, after)


async def test_nobody_comes_and_nobody_opens(tmp_path: Path) -> None:
    door = await Door.open(tmp_path / "door")
    assert await door.heir(0.01) is None
    with pytest.raises(LinkError, match=f"process {os.getpid()} waits at the door of the runner 1"):
        await knock(tmp_path / "door", 1)
    door.close()
    with pytest.raises(LinkError, match="cannot be reached"):
        await knock(tmp_path / "nowhere", os.getpid())


async def test_an_heir_is_told_the_secret_of_the_group(tmp_path: Path) -> None:
    door = await Door.open(tmp_path / "door", b"of the group")
    pipe = await knock(tmp_path / "door", os.getpid())
    assert await pipe.secret() == b"of the group"
    heard = await door.heir(30)
    assert heard is not None
    pipe.send(STOP)
    assert await heard.receive() == STOP
    closed(door, pipe, heard)


async def test_a_runner_that_closes_its_door_tells_no_secret() -> None:
    near, far = socket.socketpair()
    pipe = RunnerPipe(near)
    far.sendall(b"\0\0")
    far.close()
    with pytest.raises(LinkError, match="before it had told its group's secret"):
        await pipe.secret()
    closed(pipe)
