"""The archive of a run that has ended: its log is read and written segment by segment, and no more of it is held."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from runfold import archiver, growing
from runfold.archiver import archive_run
from runfold.events.log import Stored
from runfold.keepsake import kept
from runfold.replay.archive import archive_path, write_archive
from runfold.replay.errors import ArchiveRefused, CannotRead
from runfold.replay.source import load
from runfold.replay.store import open_store
from runfold.replay.unarchive import read_last
from runfold.workers.layout import StorageSpec
from runfold.workers.storage import open_storage
from support.histories import (
    RUN,
    Voice,
    beginning,
    chained,
    decided,
    ending,
    failing_run,
    finished_run,
    history,
    reports,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from runfold.client import Client
    from runfold.replay.manifest import LastManifest

SEGMENT_BYTES = 64 * 1024


class Log:
    """A live log that holds these messages."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    async def read(self, after: int = 0) -> AsyncIterator[Stored]:
        for sequence, line in enumerate(self._lines[after:], after + 1):
            yield Stored(data=line, sequence=sequence)


class Connected:
    """A client of a broker that is none."""

    connection = None


def archived(monkeypatch: pytest.MonkeyPatch, lines: Sequence[bytes], data_dir: Path) -> LastManifest | None:
    """Archive a run with this log, as is done when it has ended."""

    async def open_log(*_: object) -> Log:
        await asyncio.sleep(0)
        return Log(lines)

    async def beside(*_: object) -> tuple[dict[str, bytes], list[object]]:
        await asyncio.sleep(0)
        return {}, []

    monkeypatch.setattr(growing, "open_log", open_log)
    monkeypatch.setattr(archiver, "_beside", beside)
    monkeypatch.setattr(growing, "ARCHIVE_SEGMENT_MAX_BYTES", SEGMENT_BYTES)
    return asyncio.run(archive_run(cast("Client", Connected()), RUN, data_dir))


def long_run(count: int) -> list[bytes]:
    """A run that reports so often, a kilobyte each time."""
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node)  # first: facts are numbered as they are made
    for t, items in reports(node, 1.0, range(count)):
        steps.append((t, [replace(item, metrics={"text": f"{k:01000}"}) for k, item in enumerate(items)]))
    return decided(steps + ending(pool, node, 2.0 + 0.5 * count, 1, count))


def test_it_is_what_is_written_of_a_whole_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = archived(monkeypatch, failing_run(), tmp_path)
    whole = write_archive(history(failing_run()), tmp_path / "whole")
    assert last is not None
    assert whole is not None
    assert replace(last, previous="", sha256="") == replace(whole, previous="", sha256="")
    assert load(RUN, data_dir=tmp_path, deep=True).damages == ()
    assert archived(monkeypatch, failing_run(), tmp_path) == last


def test_no_more_of_the_log_is_held_than_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = long_run(1500)
    (tmp_path / "storage" / RUN).mkdir(parents=True)
    tracemalloc.start()
    try:
        last = archived(monkeypatch, lines, tmp_path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert last is not None
    assert last.segments > 20
    assert peak_bytes < sum(map(len, lines)) / 2
    log = kept(open_storage(StorageSpec(url=str(tmp_path / "storage"), name=RUN)))
    assert log is not None
    assert ([link.data for link in log.links], log.damages) == (lines, ())


def test_an_archive_that_was_changed_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = long_run(200)
    assert archived(monkeypatch, lines[:-1], tmp_path) is None, "the run goes on"
    store = open_store(archive_path(tmp_path, RUN))
    name = f"segments/{store.names('segments')[3]}"
    store.write(name, store.read(name)[:-1] + b"x")
    with pytest.raises(ArchiveRefused, match=r"was not archived: the archive at .* is damaged"):
        archived(monkeypatch, lines, tmp_path)
    assert read_last(store) is None


def test_a_log_that_breaks_off_is_archived_up_to_there_and_not_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = failing_run()
    with pytest.raises(ArchiveRefused, match=r"does not go on where the archive at .* ends \(entry 3\)"):
        archived(monkeypatch, [*lines[:4], *lines[5:]], tmp_path)
    history = load(RUN, data_dir=tmp_path)
    assert ([link.data for link in history.links], [one.flaw for one in history.damages]) == (lines[:4], ["truncated"])


def test_another_log_than_the_one_archived_is_not_mixed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived(monkeypatch, failing_run(), tmp_path)
    with pytest.raises(ArchiveRefused, match="or it is another run's"):
        archived(monkeypatch, finished_run(), tmp_path)
    assert [link.data for link in load(RUN, data_dir=tmp_path).links] == failing_run()


def test_a_log_without_an_entry_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotRead, match="holds no entry"):
        archived(monkeypatch, [], tmp_path)


def test_other_messages_in_the_log_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = failing_run()
    last = archived(monkeypatch, [lines[0], b"no entry", *chained([(0.0, (), ())], "other"), *lines[1:]], tmp_path)
    assert last is not None
    assert [link.data for link in load(RUN, data_dir=tmp_path).links] == lines
