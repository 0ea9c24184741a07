"""Places on disk: held by one runner at a time, found by whoever comes after, cleared when nobody holds them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from runfold.workers.errors import LinkError
from runfold.workers.heirs import Door, knock
from runfold.workers.pipe import StopNow
from runfold.workers.places import Place, PlaceLock, PlaceTakenError, find_places, is_held, socket_path
from runfold.workers.processes import start_time
from runfold.workers.strangers import Stranger
from support.waiting import within

if TYPE_CHECKING:
    from pathlib import Path

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def place(pid: int | None = None) -> Place:
    mine = os.getpid() if pid is None else pid
    return Place(
        run="digits-1",
        pool="local",
        node="local",
        source="local",
        attempt=3,
        pid=mine,
        started=start_time(mine),
        slots=2,
        resources={"CPU": 0.5},
    )


def test_a_place_is_held_by_one_and_found_by_all(tmp_path: Path) -> None:
    folder = tmp_path / "places"
    lock = PlaceLock.take(folder, place())
    ((path, found),) = find_places(folder)
    assert found == place()
    with pytest.raises(PlaceTakenError, match=f"the runner {os.getpid()} is at work for digits-1 on local"):
        PlaceLock.take(folder, place())
    lock.release()
    assert not is_held(path)
    PlaceLock.take(folder, place()).release()


def test_the_folder_and_its_files_are_for_nobody_else(tmp_path: Path) -> None:
    folder = tmp_path / "places"
    lock = PlaceLock.take(folder, place())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]
    lock.release()


def test_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "digits-1.local.json"
    left.write_bytes(b"{}")
    socket_path(left).write_bytes(b"")
    assert find_places(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_being_written_is_looked_at_again(tmp_path: Path) -> None:
    lock = PlaceLock.take(tmp_path, place())
    (path,) = (path for path, _ in find_places(tmp_path))
    path.write_bytes(b'{"v": 1')
    assert find_places(tmp_path) == []
    assert is_held(path)
    lock.release()


async def test_an_heir_is_heard_and_the_one_before_no_more(tmp_path: Path) -> None:
    path = tmp_path / ("long-" * 30) / "door.sock"
    path.parent.mkdir(parents=True)
    door = await Door.open(path)
    try:
        first = await knock(path, os.getpid())
        heard = await door.heir(30)
        assert heard is not None
        door.attend(heard)
        first.send(StopNow(reason="enough", grace_s=1.0))
        assert await heard.receive() == StopNow(reason="enough", grace_s=1.0)
        second = await knock(path, os.getpid())
        assert await heard.receive() is None
        other = await door.heir(30)
        assert other is not None
        second.close()
        assert await other.receive() is None
        assert await door.heir(0.01) is None
    finally:
        door.close()
    first.close()
    with pytest.raises(LinkError, match="cannot be reached at its door"):
        await knock(path, os.getpid())


async def test_another_process_at_the_door_is_not_taken_for_the_runner(tmp_path: Path) -> None:
    door = await Door.open(tmp_path / "door.sock")
    try:
        with pytest.raises(LinkError, match=f"process {os.getpid()} waits at the door of the runner 1"):
            await knock(tmp_path / "door.sock", 1)
    finally:
        door.close()


async def test_a_stranger_is_seen_to_end_and_signalled() -> None:
    sleeper = await asyncio.create_subprocess_exec(*SLEEPER)
    stranger = Stranger(sleeper.pid, start_time(sleeper.pid))
    assert stranger.alive
    assert stranger.signal(signal.SIGKILL)
    await within(30, stranger.wait())
    await sleeper.wait()
    assert not stranger.signal(signal.SIGKILL)
    stranger.close()


def test_an_id_that_another_process_bears_by_now_is_nobody() -> None:
    stranger = Stranger(os.getpid(), 1.0)
    assert not stranger.alive
    assert not stranger.signal(signal.SIGKILL)
    assert not Stranger(os.getpid(), None).alive
    stranger.close()
