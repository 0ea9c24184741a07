"""The archiver beside a running service: segment by segment, over outages of the archive, from where it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runfold.archiving import Archiver
from runfold.client import open_client
from runfold.config import read_settings
from runfold.events.facts import Reported
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.status import Status
from runfold.locate import Address, Where
from runfold.replay.archive import archive_path
from runfold.replay.audit import audit
from runfold.replay.errors import NotFound
from runfold.replay.history import History
from runfold.replay.source import load, read_log
from runfold.sources import open_history
from support.broker import BrokerForTest
from support.controller import Observer, controller
from support.groups import RUN, Group, asked
from support.waiting import until


@asynccontextmanager
async def archiving(broker: BrokerForTest, data_dir: Path) -> AsyncIterator[list[str]]:
    """Run an archiver for a while; what it says."""
    said: list[str] = []
    address = Address(broker.running.url(Role.CLIENT), broker.names.namespace, local=True)
    async with open_client(address) as client:
        task = asyncio.create_task(Archiver(client, data_dir, said.append).run())
        try:
            yield said
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def archived(data_dir: Path) -> History | None:
    try:
        return load(archive_path(data_dir, RUN), deep=True)
    except NotFound:
        return None


async def reaches(data_dir: Path, n: int) -> History:
    """Wait until the archive holds an entry, and return it."""
    found: list[History] = []

    def there() -> bool:
        history = archived(data_dir)
        found[:] = [history] if history is not None else []
        return history is not None and bool(history.links) and history.head.n >= n

    await until(there)
    return found[0]


async def head_of(observer: Observer, index: int) -> Status:
    return await observer.status(RUN, lambda now: bool(now.ranks) and now.ranks[0].index >= index)


async def report(group: Group, index: int) -> None:
    await group.runner.say(group.runner.next(Reported, rank=0, life=1, index=index, metrics={"step": index}))


async def test_an_archive_grows_with_its_run_and_is_closed_at_its_end(broker: BrokerForTest, tmp_path: Path) -> None:
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        await observer.submit(asked())
        await observer.assignment(RUN)
        group = Group(await broker.connect(Role.WORKER), observer)
        async with archiving(broker, tmp_path) as said:
            await group.trains()
            await report(group, 0)
            first = await reaches(tmp_path, (await head_of(observer, 0)).head.n)
            assert [damage.flaw for damage in first.damages] == ["truncated"]
        await report(group, 1)
        now = await head_of(observer, 1)
        async with archiving(broker, tmp_path) as again:
            later = await reaches(tmp_path, now.head.n)
            assert later.links[: len(first.links)] == first.links
            await group.finishes()
            await until(lambda: (found := archived(tmp_path)) is not None and not found.damages)
    history = archived(tmp_path)
    assert history is not None
    assert audit(history).clean
    live = await read_log(JetStreamLog(observer.connection, RUN), RUN)
    assert [link.data for link in history.links] == [link.data for link in live.links]
    assert len(list((tmp_path / "archive" / RUN / "segments").glob("*.json"))) > 2
    assert said == again == []


async def test_an_archive_out_of_reach_delays_nothing_and_is_caught_up(broker: BrokerForTest, tmp_path: Path) -> None:
    observer = Observer(await broker.connect(Role.CLIENT))
    data = tmp_path / "service"
    data.mkdir()
    (data / "archive").write_text("in the way of the folder")
    async with controller(broker), archiving(broker, data) as said:
        await observer.submit(asked())
        await observer.assignment(RUN)
        group = Group(await broker.connect(Role.WORKER), observer)
        await group.trains()
        await until(lambda: bool(said))
        await report(group, 0)
        await head_of(observer, 0)
        (data / "archive").unlink()
        await group.finishes()
        await until(lambda: (found := archived(data)) is not None and not found.damages)
    assert len(said) == 1
    assert said[0].startswith("digits-1 is archived later:")


async def test_another_log_than_the_one_archived_is_refused(broker: BrokerForTest, tmp_path: Path) -> None:
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        await observer.submit(asked())
        await observer.assignment(RUN)
    async with archiving(broker, tmp_path):
        before = await reaches(tmp_path, 0)
    segment = tmp_path / "archive" / RUN / "segments" / "000000000000.json"
    segment.write_bytes(segment.read_bytes().replace(before.head.hash.encode(), b"0" * 64))
    async with controller(broker):
        await observer.status(RUN, lambda now: now.epoch == 2)
        async with archiving(broker, tmp_path) as said:
            await until(lambda: bool(said))
    assert "does not go on where the archive" in said[0]


async def test_a_log_shorter_than_its_open_archive_is_found_by_the_audit(broker: BrokerForTest) -> None:
    observer = Observer(await broker.connect(Role.CLIENT))
    data = broker.data_dir
    async with controller(broker):
        await observer.submit(asked())
        await observer.assignment(RUN)
        group = Group(await broker.connect(Role.WORKER), observer)
        await group.trains()
        await report(group, 0)
        now = await head_of(observer, 0)
        async with archiving(broker, data):
            await reaches(data, now.head.n)
    where = Where(data_dir=data, settings=read_settings({}), named=None)
    assert audit(await open_history(where, RUN, deep=True)).clean
    admin = await broker.api()
    for subject in (broker.names.subjects.assignment(RUN), f"$KV.RUNFOLD_STATUS.{RUN}"):
        stream = broker.names.assignments if "KV" not in subject else "KV_RUNFOLD_STATUS"
        await admin.purge_all(stream, subject)
    await admin.purge(broker.names.log, broker.names.subjects.log(RUN), 3)
    report_of_loss = audit(await open_history(where, RUN, deep=True))
    assert {finding.rule for finding in report_of_loss.findings} >= {"head"}
    assert any("the archive" in finding.what for finding in report_of_loss.findings)
