"""Ranks that make no step, told apart while they make none; their stacks are written whatever they do."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from runfold.workers.link import Report
from runfold.workers.stacks import where
from support.processes import suspended
from support.ranks import Group, start_of, write_job
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.workers.spawner import Spawner
    from runfold.workers.stacks import Look

WAYS = """
import ctypes, itertools, threading, time
def sleeps():
    time.sleep(600)
def locked():
    threading.Lock().acquire() and threading.Event().wait()
def loops():
    while True: pass
def spins():
    sum(itertools.repeat(0))
def deadlocks():
    mutex, library = ctypes.create_string_buffer(256), ctypes.PyDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
def train(config):
    runfold.report({"a": 1})
    globals()[config["way"]]()
"""


async def seen(
    spawner: Spawner, folder: Path, way: str, doing: str, env: dict[str, str] | None = None
) -> tuple[Look, str | None]:
    """Run a rank into a standstill and look at it until it is told for what it is; return the last look."""
    write_job(folder, WAYS)
    group = await Group(spawner, start_of(folder, config={"way": way}, env=env or {})).start()
    await group.until(Report)
    handle = group.handles[0]
    looks: list[Look] = []

    async def is_told() -> bool:
        looks.append(await handle.look())
        return looks[-1].doing == doing and f"in {way}" in looks[-1].text

    # It comes to its standstill in its time; on a busy machine who would answer waits for a CPU, as if at work.
    with suppress(TimeoutError):
        await until(is_told)
    await handle.kill()
    await group.wait()
    return looks[-1], where(looks[-1].text, str(folder))


@pytest.mark.parametrize(
    ("way", "doing"),
    [
        ("sleeps", "idle"),
        ("locked", "idle"),
        ("loops", "busy"),
        ("spins", "native"),
        ("deadlocks", "blocked"),
    ],
)
async def test_a_rank_that_makes_no_step_is_told_for_what_it_is(
    spawner: Spawner, tmp_path: Path, way: str, doing: str
) -> None:
    look, place = await seen(spawner, tmp_path, way, doing)
    assert look.doing == doing
    assert place is not None
    assert place.startswith("job.py:") or way == "locked"
    assert f"in {way}" in look.text
    assert "runs Python code" not in look.text


async def test_a_rank_that_is_stopped_is_told_so_and_shows_its_stacks_later(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, WAYS)
    group = await Group(spawner, start_of(tmp_path, config={"way": "sleeps"})).start()
    await group.until(Report)
    handle = group.handles[0]
    await suspended(psutil.Process(handle.pid))
    look = await handle.look()
    assert (look.doing, look.text) == ("stopped", "")
    assert look.trouble is not None
    os.kill(handle.pid, signal.SIGCONT)
    await until_awake(handle.look)
    await handle.kill()
    await group.wait()
    assert (await handle.look()).doing == "gone"


async def until_awake(look: object) -> None:
    """Look until it has written its stacks."""

    async def awake() -> bool:
        assert callable(look)
        found: Look = await look()
        return found.doing == "idle"

    await until(awake)


async def test_a_rank_in_a_fresh_program_is_looked_at_as_well(spawner: Spawner, tmp_path: Path) -> None:
    look, _ = await seen(spawner, tmp_path, "sleeps", "idle", {"PYTHONHASHSEED": "7"})
    assert look.doing == "idle"
