"""The time of day jumps by an hour and back under a controller: nothing is concluded from it, and nothing restarts."""

from __future__ import annotations

from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runfold.events.conclusions import ProgressStopped, SilenceConcluded
from runfold.events.config import ScalingConfig, Timeouts
from runfold.events.job import Job
from runfold.events.nats.names import Role
from support.controller import Observer
from support.controllers import controllers
from support.ranks import write_job

if TYPE_CHECKING:
    from support.pool import PoolForTest


def library() -> Path | None:
    """Find faketime's library: the system's, else the one that the package of that name brings along."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if spec := find_spec("libfaketime"):
        found += [place for folder in spec.submodule_search_locations or () for place in Path(folder).glob(WITHIN)]
    return next(iter(found), None)


WITHIN = "vendor/libfaketime/src/libfaketime.so.1"
LIBRARY = library()

REPORTS_ON = """
import pathlib, time
def train():
    step = 0
    while not runfold.broadcast_from_rank_zero(pathlib.Path("go").exists()):
        runfold.report({"step": step})
        step += 1
        time.sleep(0.05)
    return step
"""


@pytest.mark.skipif(
    LIBRARY is None, reason="no faketime here: apt-get install faketime, or pip install libfaketime (Linux, x86-64)"
)
async def test_a_clock_that_jumps_changes_nothing(pool: PoolForTest, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = pool.folder / "offset"
    offset.write_text("+0")
    monkeypatch.setenv("LD_PRELOAD", str(LIBRARY))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(offset))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    # What a clock that is set leaves alone, the library must too.
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    observer = Observer(await pool.broker.connect(Role.ADMIN))
    write_job(pool.folder, REPORTS_ON)
    # Far shorter than a jump, far longer than a process stands still on a busy machine.
    patience = Timeouts(unreachable_after_s=60.0, lost_after_s=60.0, lost_alone_after_s=120.0, progress_timeout_s=120.0)
    job = Job(
        id="digits-1",
        entrypoint="job.py:train",
        working_dir=str(pool.folder),
        scaling=ScalingConfig(num_workers=2),
        timeouts=patience,
    )
    async with controllers(pool.broker, 1):
        monkeypatch.undo()
        await observer.submit(job)
        await observer.status("digits-1", lambda status: status.metrics is not None)
        for jump in ("+1h", "-1h", "+0"):
            new = pool.folder / "offset.new"
            new.write_text(jump)
            new.replace(offset)  # it is read all the time
            # Only now: what comes after it is said after the jump.
            shown = await observer.status("digits-1", lambda status: status.metrics is not None)
            seen = max(rank.index for rank in shown.ranks)
            await observer.status(
                "digits-1",
                lambda status, seen=seen: any(rank.index > seen + 40 for rank in status.ranks),  # type: ignore[misc]  # bound per round
            )
        (pool.folder / "go").touch()
        status = await observer.status("digits-1", lambda status: status.terminal)
    assert (status.state, status.attempt) == ("finished", 1)
    assert {name: one.spent for name, one in status.budgets.items() if one.spent} == {}
    entries = await observer.entries("digits-1")
    assert not [one for entry in entries for one in entry.inputs if isinstance(one, SilenceConcluded | ProgressStopped)]
    days = [datetime.fromisoformat(entry.at) for entry in entries]
    assert max(days) - min(days) > timedelta(minutes=110)
    assert entries[-1].t < 600
    assert [entry.t for entry in entries] == sorted(entry.t for entry in entries)
