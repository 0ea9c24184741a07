"""Fork servers as programs of their own and as forks of a runner: who dies with whom."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from runfold.workers import processes
from runfold.workers.errors import SpawnError
from runfold.workers.limits import SPAWN_SPEC_MAX_BYTES
from runfold.workers.spawner import Child, Spawner
from runfold.workers.zygote import Role
from support.ranks import alive, until_gone, write_job
from support.waiting import within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TESTS = Path(__file__).parents[1]
SLEEPING = "import time\ndef train(): time.sleep(600)\n"
Told = list[tuple[int, float]]


@pytest.fixture
async def zygote(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spawner]:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    made = Spawner.launch("support.little_runner:main", Role.RUNNERS, preload=("support.little_runner",))
    await made.start()
    yield made
    await made.close()
    assert not psutil.pid_exists(made.pid)


async def start_runner(zygote: Spawner, folder: Path) -> tuple[Child, int, Told]:
    """Fork a runner; return it, the writing end of its pipe, and its spawner and ranks by id and start time."""
    reading, writing = os.pipe()
    out_reading, out_writing = os.pipe()
    child = await zygote.spawn(str(folder).encode(), {"pipe": reading, "stdout": out_writing})
    os.close(reading)
    os.close(out_writing)
    with os.fdopen(out_reading) as out:
        line = await within(60, asyncio.get_running_loop().run_in_executor(None, out.readline))
    told = msgspec.json.decode(line, type=Told)
    assert all(alive(pid, started) for pid, started in told)
    return child, writing, told


async def test_the_closing_of_its_pipe_ends_a_runner_and_all_below(zygote: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, SLEEPING)
    child, writing, told = await start_runner(zygote, tmp_path)
    os.close(writing)
    ended = await within(60, child.wait())
    assert ended.code == 5
    for pid, started in told:
        await until_gone(pid, started)


@pytest.mark.parametrize("victim", ["runner", "spawner", "stopped runner"])
async def test_a_killed_runner_or_spawner_leaves_no_rank(zygote: Spawner, tmp_path: Path, victim: str) -> None:
    write_job(tmp_path, SLEEPING)
    child, writing, told = await start_runner(zygote, tmp_path)
    if victim == "stopped runner":
        os.kill(child.pid, signal.SIGSTOP)
    os.kill(told[0][0] if victim == "spawner" else child.pid, signal.SIGKILL)
    for pid, started in told[1:]:
        await until_gone(pid, started)
    os.close(writing)
    ended = await within(60, child.wait())
    assert ended.signal == (None if victim == "spawner" else signal.SIGKILL)
    for pid, started in told:
        await until_gone(pid, started)


async def test_runners_outlive_their_fork_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    zygote = Spawner.launch("support.little_runner:main", Role.RUNNERS)
    await zygote.start()
    write_job(tmp_path, SLEEPING)
    child, writing, told = await start_runner(zygote, tmp_path)
    started = child.started
    await zygote.close()
    ended = await child.wait()
    assert not ended.known
    assert alive(child.pid, started)
    assert all(alive(pid, at) for pid, at in told)
    os.close(writing)
    for pid, at in [(child.pid, started), *told]:
        await until_gone(pid, at)


async def test_a_fork_inherits_nothing_but_what_it_is_given(zygote: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, SLEEPING)
    child, writing, told = await start_runner(zygote, tmp_path)
    rank = psutil.Process(told[1][0])
    # stdin, stdout, stderr, link, and the file that its stacks are dumped into.
    assert rank.num_fds() == 5
    assert os.getpgid(rank.pid) == rank.pid == os.getsid(rank.pid)
    os.close(writing)
    await child.wait()


async def test_forking_takes_milliseconds_not_imports(zygote: Spawner) -> None:
    children = await asyncio.gather(*(zygote.spawn(b"/nowhere", {}) for _ in range(8)))
    assert len({child.pid for child in children}) == 8
    ends = await asyncio.gather(*(within(60, child.wait()) for child in children))
    # No descriptor called `pipe` was handed over: a KeyError in each, told on stderr, is a bug of theirs.
    assert {end.code for end in ends} == {processes.EXIT_BUG}
    assert all(child.ended is not None for child in children)


async def test_limits_of_a_spawn_are_named(zygote: Spawner) -> None:
    with pytest.raises(SpawnError, match=f"over the {SPAWN_SPEC_MAX_BYTES}"):
        await zygote.spawn(bytes(SPAWN_SPEC_MAX_BYTES + 1), {})
    with pytest.raises(SpawnError, match="descriptors are over"):
        await zygote.spawn(b"", {str(n): 0 for n in range(17)})


async def test_a_fork_server_that_cannot_start_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    spawner = Spawner.launch("no_such_module_of_ours:main", Role.RANKS)
    with pytest.raises(SpawnError, match="has ended"):
        await spawner.start()
    with pytest.raises(SpawnError, match="is not running"):
        await spawner.spawn(b"", {})
    await spawner.close()
    assert "no_such_module_of_ours" in capfd.readouterr().err


async def test_a_spawner_that_is_killed_is_told_to_everyone_who_waits(zygote: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, SLEEPING)
    child, writing, _ = await start_runner(zygote, tmp_path)
    os.kill(zygote.pid, signal.SIGKILL)
    ended = await within(60, child.wait())
    assert not ended.known
    assert ended.describe() == "ended unseen"
    assert zygote.lost
    assert await child.kill() is False
    os.close(writing)
    await until_gone(child.pid, child.started)


def test_a_spawner_is_not_forked_from_a_process_with_threads() -> None:
    code = (
        "import threading\n"
        "from runfold.workers.spawner import Spawner\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "Spawner.fork(lambda spec, fds: 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "before the process starts threads" in done.stderr


async def test_ctrl_c_at_a_terminal_does_not_reach_fork_servers_or_ranks(zygote: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, SLEEPING)
    child, writing, told = await start_runner(zygote, tmp_path)
    assert os.getsid(zygote.pid) != os.getsid(0)
    os.kill(zygote.pid, signal.SIGINT)
    os.kill(told[0][0], signal.SIGINT)
    other, other_writing, _ = await start_runner(zygote, tmp_path)
    assert all(alive(pid, started) for pid, started in told)
    for fd in (writing, other_writing):
        os.close(fd)
    await asyncio.gather(child.wait(), other.wait())
