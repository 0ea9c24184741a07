"""Giving back what is archived: only what verifies, and no id is used twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from runfold.errors import UsageError
from runfold.events.assignment import Assignment
from runfold.events.entry import Head
from runfold.events.fold import fold_all
from runfold.events.nats.api import Api
from runfold.events.nats.cells import Cells, assignment_cells, owner_cells, status_cells
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.nats.unsettled import unsettled_runs
from runfold.events.status import Status
from runfold.reclaiming import parse_age, reclaim
from runfold.replay.archive import archive_path, write_archive
from runfold.replay.source import load, read_log
from support.broker import BrokerForTest
from support.controller import Observer, controller
from support.groups import RUN, Group, asked
from support.waiting import until

WRITES_MAX_COUNT = 100_000


async def ended(broker: BrokerForTest, *runs: str) -> Observer:
    """Runs that went to their end."""
    observer = Observer(await broker.connect(Role.CLIENT))
    workers = await broker.connect(Role.WORKER)
    async with controller(broker):
        for run in runs:
            await observer.submit(asked(run))
            await observer.assignment(run)
            group = Group(workers, observer, run)
            await group.trains()
            await group.finishes()
    return observer


async def archive(observer: Observer, run: str, data_dir: Path) -> str:
    target = archive_path(data_dir, run)
    assert write_archive(await read_log(JetStreamLog(observer.connection, run), run), target) is not None
    return target


def cut_short(target: str) -> None:
    (first,) = Path(target).glob("segments/*.zst")
    first.write_bytes(first.read_bytes()[:-1])


async def test_only_what_an_archive_holds_whole_is_given_back(broker: BrokerForTest, tmp_path: Path) -> None:
    observer = await ended(broker, "whole", "flawed", "bare")
    await archive(observer, "whole", tmp_path)
    cut_short(await archive(observer, "flawed", tmp_path))
    admin = await broker.connect(Role.ADMIN)
    assert await reclaim(admin, tmp_path, 3600.0) == []
    told = {one.run: one for one in await reclaim(admin, tmp_path, 0.0, dry_run=True)}
    assert (told["whole"].kept, told["whole"].messages) == (None, 0)
    assert "does not verify" in (told["flawed"].kept or "")
    assert "not archived" in (told["bare"].kept or "")
    done = {one.run: one.messages for one in await reclaim(admin, tmp_path, 0.0)}
    assert done["whole"] > 5
    assert done["flawed"] == done["bare"] == 0
    subjects = await Api(admin).subjects(broker.names.log, broker.names.subjects.logs())
    assert subjects is not None
    assert subjects[broker.names.subjects.log("whole")] == 1
    assert subjects[broker.names.subjects.log("bare")] > 5
    assert fold_all(load(archive_path(tmp_path, "whole"), deep=True).entries).terminal
    assert {one.run for one in await reclaim(admin, tmp_path, 0.0)} == {"flawed", "bare"}


async def test_the_id_of_a_purged_run_is_not_used_again(broker: BrokerForTest, tmp_path: Path) -> None:
    observer = await ended(broker, RUN)
    await archive(observer, RUN, tmp_path)
    await reclaim(await broker.connect(Role.ADMIN), tmp_path, 0.0)
    async with controller(broker):
        sequence = await observer.submit(asked(RUN))
        refused = await observer.refusal(sequence)
        assert (refused.path, refused.run) == ("$.id", RUN)
        assert "run 'digits-1' existed" in refused.reason
        await observer.queue_is_empty()
    assert len(await observer.entries(RUN)) == 1


async def test_a_run_that_was_given_back_stays_over_when_its_broker_is_killed(
    broker: BrokerForTest, tmp_path: Path
) -> None:
    """What a key had held before is in the broker's files, and is read again by one that was killed."""
    runs = tuple(f"old-{k}" for k in range(4))
    observer = await ended(broker, *runs)
    admin = await broker.connect(Role.ADMIN)
    for run in runs:
        await archive(observer, run, tmp_path)
        await spread(status_cells(admin), run)
        await spread(assignment_cells(admin), run)
    broker.restart()
    admin = await broker.connect(Role.ADMIN)
    assert {one.run for one in await reclaim(admin, tmp_path, 0.0)} == set(runs)
    writing = asyncio.create_task(written_to(status_cells(admin), assignment_cells(admin)))
    try:
        await until(lambda: _written(assignment_cells(admin), 400))
        broker.kill()
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    broker.restart()
    admin = await broker.connect(Role.ADMIN)
    shown, assigned = await status_cells(admin).read_all(), await assignment_cells(admin).read_all()
    told = [msgspec.json.decode(cell.data, type=Status) for key, cell in shown.items() if cell.data and key in runs]
    assert [one.run for one in told if not one.terminal] == []
    wants = [msgspec.json.decode(assigned[run].data or b"", type=Assignment).want for run in runs if run in assigned]
    assert set(wants) <= {"gone"}
    assert not await unsettled_runs(admin) & set(runs)


async def spread(cells: Cells, run: str) -> None:
    """Let a key's values lie far apart in the files, as those of a long run do."""
    cell = await cells.get(run)
    told = (cell and cell.data) or b""
    state = msgspec.json.decode(told)
    for k in range(6):
        early = {**state, "state": "scheduling"} if "state" in state else {**state, "want": "train", "n": 0}
        await cells.put(run, msgspec.json.encode(early) + b" " * 5000, expected=None)
        for _ in range(25 + k):
            await cells.put("noise", b"{}" + b" " * 5000, expected=None)
    await cells.put(run, told, expected=None)
    noise = await cells.get("noise")
    await cells.delete("noise", expected=noise.sequence if noise else 0)


async def written_to(*cells: Cells) -> None:
    """Write for as long as the broker lives."""
    for k in range(WRITES_MAX_COUNT):
        await asyncio.gather(*(one.put("noise", b"%d" % k + b" " * 5000, expected=None) for one in cells))


async def _written(cells: Cells, count: int) -> bool:
    cell = await cells.get("noise")
    return cell is not None and cell.data is not None and int(cell.data) >= count


async def test_what_came_alive_of_a_run_that_was_given_back_is_healed(broker: BrokerForTest, tmp_path: Path) -> None:
    """As it was left by a version that purged what is shown, on a broker that was killed after that."""
    observer = await ended(broker, RUN)
    await archive(observer, RUN, tmp_path)
    admin = await broker.connect(Role.ADMIN)
    statuses, assignments, owners = status_cells(admin), assignment_cells(admin), owner_cells(admin)
    over = await observer.status(RUN)
    head = Head(n=over.head.n - 2, hash="00" * 32)
    await reclaim(admin, tmp_path, 0.0)
    stale = msgspec.structs.replace(over, state="scheduling", head=head)
    wanted = Assignment(run=RUN, epoch=1, n=head.n, hash=head.hash, attempt=1, want="place", num_workers=2)
    for key_held in (False, True):
        await statuses.put(RUN, msgspec.json.encode(stale), expected=None)
        await assignments.put(RUN, msgspec.json.encode(wanted), expected=None)
        assert await unsettled_runs(admin) == {RUN}
        if key_held:  # as it was taken up in vain before, and quarantined
            await owners.put(RUN, b"ctl-0", expected=None)
        async with controller(broker):
            await observer.assignment(RUN, lambda now: now.want == "gone")
            await until(lambda: _is_empty(statuses, RUN))
            await until(lambda: _is_empty(owners, RUN))
        cell = await statuses.get(RUN)
        assert cell is not None
        assert cell.data is None, "nobody has marked it quarantined"
        assert await unsettled_runs(admin) == set()


async def _is_empty(cells: Cells, key: str) -> bool:
    cell = await cells.get(key)
    return cell is None or cell.data is None


@pytest.mark.parametrize(("text", "age_s"), [("30d", 2_592_000.0), ("1.5h", 5400.0), ("2m", 120.0), ("0s", 0.0)])
def test_an_age_is_read(text: str, age_s: float) -> None:
    assert parse_age(text) == age_s


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1w", "1d 2h"])
def test_anything_else_is_no_age(text: str) -> None:
    with pytest.raises(UsageError, match="--older-than"):
        parse_age(text)
