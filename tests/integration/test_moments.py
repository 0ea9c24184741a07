"""A run's state at a moment, told from a snapshot on the service: the same as from the whole log."""

from __future__ import annotations

from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from runfold.config import read_settings
from runfold.events.entry import Head, decode_entry, hash_entry
from runfold.events.fold import fold_all
from runfold.events.nats.files import CONNECTION_FILE
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.nats.snapshots import RunSnapshots
from runfold.events.snapshot import StateSnapshot, encode_snapshot, fold_version
from runfold.locate import Where
from runfold.moments import live_state_at
from runfold.replay.at import state_at
from runfold.replay.errors import BadMoment
from runfold.replay.source import read_log
from support.broker import BrokerForTest
from support.controller import Observer, controller
from support.groups import RUN, Group, asked


async def kept(broker: BrokerForTest, *numbers: int) -> tuple[Where, JetStreamLog]:
    """A run that has ended, with snapshots after some of its entries."""
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        await observer.submit(asked())
        await observer.assignment(RUN)
        group = Group(await broker.connect(Role.WORKER), observer)
        await group.trains()
        await group.finishes()
    log = JetStreamLog(observer.connection, RUN)
    stored = [one async for one in log.read()]
    snapshots = RunSnapshots(await broker.connect(Role.CONTROLLER), RUN)
    for n in numbers:
        state = fold_all(decode_entry(one.data) for one in stored[: n + 1])
        snapshot = StateSnapshot(
            fold=fold_version(version("runfold")),
            run=RUN,
            sequence=stored[n].sequence,
            head=Head(n=n, hash=hash_entry(stored[n].data)),
            state=state,
        )
        await snapshots.put(str(n), encode_snapshot(snapshot) or b"")
    return Where(data_dir=broker.data_dir, settings=read_settings({}), named=None), log


async def test_the_state_is_the_same_as_from_the_whole_log(broker: BrokerForTest) -> None:
    where, log = await kept(broker, 2, 4, 6)
    history = await read_log(log, RUN)
    for n in range(2, len(history.links)):
        entry = history.entries[n]
        later = datetime.fromisoformat(entry.at) + timedelta(microseconds=1)
        for when in (str(n), f"+{entry.t + 1e-7:.7f}s", later.isoformat()):
            assert await live_state_at(where, RUN, when) == state_at(history, when), when


async def test_without_a_snapshot_before_it_nothing_is_told(broker: BrokerForTest) -> None:
    where, log = await kept(broker, 4)
    last = len((await read_log(log, RUN)).links) - 1
    assert await live_state_at(where, RUN, "3") is None
    assert await live_state_at(where, RUN, str(last + 1)) is None
    assert await live_state_at(where, RUN, "2001-01-01") is None
    assert await live_state_at(where, "nobody", "4") is None
    assert await live_state_at(where, "some/file.jsonl", "4") is None
    with pytest.raises(BadMoment):
        await live_state_at(where, RUN, "whenever")


async def test_a_snapshot_of_another_entry_is_not_believed(broker: BrokerForTest, tmp_path: Path) -> None:
    where, log = await kept(broker, 4)
    snapshots = RunSnapshots(await broker.connect(Role.CONTROLLER), RUN)
    data = await snapshots.get(4)
    stored = [one async for one in log.read()]
    wrong = (data or b"").replace(hash_entry(stored[4].data).encode(), b"0" * 64)
    await snapshots.put("4", wrong)
    assert await live_state_at(where, RUN, "5") is None
    assert await live_state_at(Where(data_dir=tmp_path, settings=where.settings, named=None), RUN, "5") is None
    assert not (tmp_path / CONNECTION_FILE).exists()
