"""The broker goes away while a group trains: its ranks go on, and not a report is lost or doubled."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from runfold.events.config import FailureConfig, ScalingConfig
from runfold.events.facts import RankReturned, Reported
from runfold.events.job import Job
from runfold.events.nats.names import Role
from support.controller import Observer, controller
from support.ranks import write_job
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.entry import Entry
    from support.pool import PoolForTest

REPORTS_ON = """
import pathlib, time
def train():
    step = 0
    while not runfold.broadcast_from_rank_zero(pathlib.Path("go").exists()):
        runfold.report({"step": step})
        assert runfold.all_gather(step) == [step, step]
        step += 1
        if runfold.get_context().get_world_rank() == 0:
            pathlib.Path("step.new").write_text(str(step))
            pathlib.Path("step.new").replace("step")
        time.sleep(0.01)
    return step
"""


def steps(folder: Path) -> int:
    """How far the ranks have come, as they tell it beside the broker."""
    try:
        return int((folder / "step").read_text())
    except FileNotFoundError:
        return 0


def reports(entries: list[Entry], rank: int) -> list[Reported]:
    """The reports of a rank, as the log has them."""
    items = [item for entry in entries for item in entry.inputs]
    return [item for item in items if isinstance(item, Reported) and item.rank == rank]


def job(folder: Path) -> Job:
    """Two ranks that report and gather on and on, in one attempt or not at all."""
    write_job(folder, REPORTS_ON)
    return Job(
        id="digits-1",
        entrypoint="job.py:train",
        working_dir=str(folder),
        scaling=ScalingConfig(num_workers=2),
        failure=FailureConfig(max_failures=0, controller_failure_limit=0),
    )


@pytest.mark.parametrize(
    "outage_s", [1.2, pytest.param(30.0, marks=pytest.mark.soak), pytest.param(600.0, marks=pytest.mark.soak)]
)
async def test_an_outage_of_the_broker_costs_nothing(pool: PoolForTest, outage_s: float) -> None:
    folder = pool.folder
    observer = Observer(await pool.broker.connect(Role.ADMIN))
    async with controller(pool.broker):
        await observer.submit(job(folder))
        await observer.status("digits-1", lambda status: status.metrics is not None)
        pool.broker.kill()
        before = steps(folder)
        # The outage itself; the ranks go on meanwhile.
        await asyncio.sleep(outage_s)
        await until(lambda: steps(folder) >= before + 20)
        pool.broker.restart()
        there = steps(folder)
        await observer.status("digits-1", lambda status: any(rank.index > there for rank in status.ranks))
        (folder / "go").touch()
        status = await observer.status("digits-1", lambda status: status.terminal)
        assert (status.state, status.attempt) == ("finished", 1)
        assert {name: budget.spent for name, budget in status.budgets.items() if budget.spent} == {}
        entries = await observer.entries("digits-1")
    returned = [item for entry in entries for item in entry.inputs if isinstance(item, RankReturned)]
    assert len(returned) == 2
    for rank in (0, 1):
        indices = [report.index for report in reports(entries, rank)]
        assert indices == list(range(returned[rank].reports))
    numbers = [report.number for rank in (0, 1) for report in reports(entries, rank)]
    assert len(set(numbers)) == len(numbers)
    assert all(one.t <= other.t for one, other in pairwise(entries))


async def test_a_run_that_is_being_started_when_the_broker_goes_away_starts_all_the_same(pool: PoolForTest) -> None:
    folder = pool.folder
    observer = Observer(await pool.broker.connect(Role.ADMIN))
    async with controller(pool.broker):
        await observer.submit(job(folder))
        await observer.assignment("digits-1")
        pool.broker.kill()
        await asyncio.sleep(1.2)
        pool.broker.restart()
        (folder / "go").touch()
        status = await observer.status("digits-1", lambda status: status.terminal)
    assert (status.state, status.attempt) == ("finished", 1)
