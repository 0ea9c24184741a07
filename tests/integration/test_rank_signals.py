"""Real rank processes: signals, groups, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from runfold.workers import processes
from runfold.workers.link import Entered, Report
from runfold.workers.spawner import Spawner
from runfold.workers.zygote import Role
from support.ranks import Group, run_one, start_of, until_gone, write_job
from support.waiting import within

if TYPE_CHECKING:
    from pathlib import Path


async def test_sigterm_ends_a_rank_at_once(spawner: Spawner, tmp_path: Path) -> None:
    write_job(tmp_path, "import time\ndef train():\n  print('here')\n  time.sleep(600)\n")
    group = await Group(spawner, start_of(tmp_path)).start()
    await group.until(Entered)
    assert await group.handles[0].kill(signal.SIGTERM, group=False)
    (end,) = await group.wait()
    assert end.exit.signal == signal.SIGTERM
    assert not await group.handles[0].kill()


async def test_a_rank_whose_end_its_fork_server_has_yet_to_tell_did_not_close_its_link_and_go_on(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runfold.workers.handle.LINK_DRAIN_TIMEOUT_S", 0.1)
    write_job(tmp_path, "import time\ndef train(): time.sleep(600)\n")
    group = await Group(spawner, start_of(tmp_path)).start()
    await group.until(Entered)
    (handle,) = group.handles
    os.kill(spawner.pid, signal.SIGSTOP)
    try:
        os.kill(handle.pid, signal.SIGKILL)
        await until_gone(handle.pid, handle.started)
        assert await within(30, handle._watch_link()) is None
    finally:
        os.kill(spawner.pid, signal.SIGCONT)
    monkeypatch.undo()
    (end,) = await group.wait()
    assert (end.exit.signal, end.link_error) == (signal.SIGKILL, None)


async def test_what_a_rank_has_started_dies_with_it(spawner: Spawner, tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import os, subprocess, time
        def train():
            mine = subprocess.Popen(["sleep", "600"])
            runfold.report({"pid": mine.pid})
            os._exit(0)
        """,
    )
    end, group = await run_one(spawner, start_of(tmp_path))
    assert end.exit.code == 0
    pid = int(str(group.reports()[0].metrics["pid"]))
    await until_gone(pid, processes.start_time(pid))


async def test_closing_the_spawner_ends_ranks_and_their_daemons(tmp_path: Path) -> None:
    write_job(
        tmp_path,
        """
        import subprocess, time
        def train():
            mine = subprocess.Popen(["sleep", "600"], start_new_session=True)
            runfold.report({"pid": mine.pid})
            time.sleep(600)
        """,
    )
    spawner = Spawner.launch("runfold.workers.rank:main", Role.RANKS)
    await spawner.start()
    group = await Group(spawner, start_of(tmp_path)).start()
    await group.until(Report)
    pid = int(str(group.reports()[0].metrics["pid"]))
    identity = processes.start_time(pid)
    await spawner.close()
    (end,) = await group.wait()
    assert end.exit.signal == signal.SIGKILL
    await until_gone(pid, identity)


async def test_ranks_die_when_their_spawner_is_killed(tmp_path: Path) -> None:
    write_job(tmp_path, "import time\ndef train(): time.sleep(600)\n")
    spawner = Spawner.launch("runfold.workers.rank:main", Role.RANKS)
    await spawner.start()
    group = await Group(spawner, start_of(tmp_path), world_size=2).start()
    await group.until(Entered)
    os.kill(spawner.pid, signal.SIGKILL)
    ends = await group.wait()
    assert [end.exit.known for end in ends] == [False, False]
    for handle in group.handles:
        await until_gone(handle.pid, handle.started)
    await spawner.close()
