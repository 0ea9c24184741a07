"""Giving back what is archived: only what verifies, and no id is used twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from runfold.errors import UsageError
from runfold.events.fold import fold_all
from runfold.events.nats.api import Api
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.reclaiming import parse_age, reclaim
from runfold.replay.archive import archive_path, write_archive
from runfold.replay.source import load, read_log
from support.broker import BrokerForTest
from support.controller import Observer, controller
from support.groups import RUN, Group, asked


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


@pytest.mark.parametrize(("text", "age_s"), [("30d", 2_592_000.0), ("1.5h", 5400.0), ("2m", 120.0), ("0s", 0.0)])
def test_an_age_is_read(text: str, age_s: float) -> None:
    assert parse_age(text) == age_s


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1w", "1d 2h"])
def test_anything_else_is_no_age(text: str) -> None:
    with pytest.raises(UsageError, match="--older-than"):
        parse_age(text)
