"""A broker's log that loses its end, or a record in its middle: quarantine, restoration, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from runfold.errors import RestoreRefusedError, UsageError
from runfold.events.entry import decode_entry
from runfold.events.facts import Released, Reported
from runfold.events.fold import fold_all
from runfold.events.nats.generations import generation_of, open_log
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.transitions import LogRestored
from runfold.forcing import force_stop
from runfold.replay.archive import write_archive
from runfold.replay.audit import audit
from runfold.replay.source import load, read_log
from runfold.replay.verify import verify
from runfold.restoring import restore
from support.broker import BrokerForTest
from support.controller import Observer, controller
from support.groups import RUN, Group, asked

REPORTS = 6


async def report(group: Group, first: int, count: int) -> None:
    for index in range(first, first + count):
        await group.runner.say(group.runner.next(Reported, rank=0, life=1, index=index, metrics={"step": index}))
        await group.observer.status(group.run, lambda now, i=index: now.ranks[0].index >= i)  # type: ignore[misc]  # bound


async def trained(broker: BrokerForTest, archive: Path) -> tuple[Observer, Group]:
    """A run at work, with an archive that lacks its newest entries; its controller has ended."""
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        await observer.submit(asked())
        await observer.assignment(RUN)
        group = Group(await broker.connect(Role.WORKER), observer)
        await group.trains()
        await report(group, 0, REPORTS)
        write_archive(await read_log(JetStreamLog(observer.connection, RUN), RUN), archive)
        await report(group, REPORTS, 3)
    return observer, group


def truncate(broker: BrokerForTest) -> None:
    """Flip a byte of a record in the middle of the log and kill the broker: it forgets everything from there on."""
    broker.kill()
    (block,) = (broker.running.folder / "store").glob("**/RUNFOLD_LOG/msgs/*.blk")
    data = bytearray(block.read_bytes())
    place = data.rfind(b'"index":3')
    data[place] ^= 1
    block.write_bytes(bytes(data))
    broker.restart()


async def test_a_truncated_log_is_restored_and_the_run_goes_on(broker: BrokerForTest, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    observer, group = await trained(broker, archive)
    whole = [stored.data async for stored in JetStreamLog(observer.connection, RUN).read()]
    truncate(broker)
    async with controller(broker):
        marked = await observer.status(RUN, lambda now: now.quarantined is not None)
        assert "the log ends at entry" in (marked.quarantined or "")
        assert marked.state == "running"
        left = [stored.data async for stored in JetStreamLog(observer.connection, RUN).read()]
        assert left == whole[: len(left)]
        assert len(left) < len(whole)
        done = await restore(await broker.connect(Role.ADMIN), RUN, load(archive))
        assert (done.generation, done.copied - 1 + done.lost) == (2, decode_entry(whole[-1]).n)
        lifted = await observer.status(RUN, lambda now: now.quarantined is None and now.ranks[0].index == REPORTS + 2)
        assert lifted.attempt == 1
        await report(group, REPORTS + 3, 2)
        await group.finishes()
    history = await read_log(await open_log(observer.connection, RUN), RUN)
    assert [link.data for link in history.links[: done.copied]] == whole[: done.copied]
    assert fold_all(history.entries).reports == REPORTS + 5
    assert audit(history).clean
    assert verify(history).outcome == "agrees"
    assert [item for entry in history.entries for item in entry.transitions if isinstance(item, LogRestored)]
    ended = tmp_path / "ended"
    last = write_archive(history, ended)
    assert last is not None
    assert audit(load(ended, deep=True)).clean


async def test_a_whole_log_is_not_replaced(broker: BrokerForTest, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    observer, _ = await trained(broker, archive)
    admin = await broker.connect(Role.ADMIN)
    with pytest.raises(RestoreRefusedError, match="the log of digits-1 is whole"):
        await restore(admin, RUN, load(archive))
    with pytest.raises(RestoreRefusedError, match="is of run 'digits-1', not of 'other'"):
        await restore(admin, "other", load(archive))
    (first, *_) = sorted(archive.glob("segments/*.zst"))
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(RestoreRefusedError, match="is damaged itself"):
        await restore(admin, RUN, load(archive))
    assert await generation_of(observer.connection, RUN) == 1


async def test_a_copy_that_was_not_finished_counts_for_nothing(broker: BrokerForTest, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    observer, _ = await trained(broker, archive)
    truncate(broker)
    admin = await broker.connect(Role.ADMIN)
    for link in load(archive).links[:5]:
        await observer.publish(broker.names.subjects.log(RUN, 2), link.data, admin)
    assert await generation_of(admin, RUN) == 1
    assert (await restore(admin, RUN, load(archive))).generation == 3
    assert await generation_of(admin, RUN) == 3


async def test_a_quarantined_run_is_stopped_by_force_and_may_still_be_restored(
    broker: BrokerForTest, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    observer, group = await trained(broker, archive)
    truncate(broker)
    admin = await broker.connect(Role.ADMIN)
    async with controller(broker):
        await observer.status(RUN, lambda now: now.quarantined is not None)
        before = await observer.assignment(RUN)
        assert await force_stop(admin, RUN, "stuck") == "its group was told to stop, outside the log"
        forced = await observer.assignment(RUN, lambda now: now.want == "stop")
        assert (forced.epoch, forced.n, forced.hash, forced.forced) == (before.epoch, before.n, before.hash, 1)
        assert forced.newer_than(before)
        await force_stop(admin, RUN, "still stuck")
        assert (await observer.assignment(RUN, lambda now: now.forced == 2)).newer_than(forced)
        await group.pool.say(group.pool.next(Released))
        await restore(admin, RUN, load(archive))
        now = await observer.status(RUN, lambda now: now.quarantined is None)
        assert now.epoch > forced.epoch
        again = await observer.assignment(RUN, lambda now: now.epoch > forced.epoch)
        assert again.newer_than(forced)


async def test_force_is_for_runs_that_nobody_decides_for(
    broker: BrokerForTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer, _ = await trained(broker, tmp_path / "archive")
    # Its lease is there when it is looked for, however long that takes.
    monkeypatch.setattr("runfold.events.nats.leases.TTL_S", 600)
    admin = await broker.connect(Role.ADMIN)
    async with controller(broker):
        await observer.status(RUN, lambda now: now.epoch == 2)
        with pytest.raises(UsageError, match="is not quarantined, and a controller is there"):
            await force_stop(admin, RUN, "impatient")
