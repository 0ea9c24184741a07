"""What commands and library hold, read and send is limited; what is beyond is said, and nothing is half done."""

from __future__ import annotations

import asyncio
import http.server
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

import runfold
from runfold import _serve
from runfold.brokerhealth import broker_trouble
from runfold.cli import up
from runfold.cli.up import CONTROLLERS_MAX_COUNT
from runfold.errors import UsageError
from runfold.events.fold import fold, fold_all
from runfold.happenings import Happening, Happenings
from runfold.keepsake import PREFIX, SUFFIX, kept
from runfold.observers import Observers, Watching, finished
from runfold.overwriting import check_overwriting
from runfold.parcels import Parcels
from runfold.pickling import pickle_object
from runfold.replay.errors import CannotRead
from runfold.replay.export import export_lines
from runfold.replay.gather import FOLDERS_DEEP_MAX_COUNT, gather
from runfold.replay.source import load
from runfold.unpicklable import DEPTH_MAX_COUNT
from runfold.workers.layout import StorageSpec
from runfold.workers.storage import open_storage
from support.runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 30.0
EXPORTED = Path(__file__).parent.parent / "golden" / "golden-digits-retry.jsonl"


# --- logs that are read


def test_a_folder_holds_so_many_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runfold.replay.gather.LOGS_MAX_COUNT", 3)
    for k in range(3):
        (tmp_path / f"run-{k}.jsonl").write_bytes(b"")
    assert len(gather(str(tmp_path))) == 3
    (tmp_path / "run-3.jsonl").write_bytes(b"")
    with pytest.raises(CannotRead, match=r"holds more than logs_max \(3\) logs; name a folder in it"):
        gather(str(tmp_path))


def test_logs_are_looked_for_so_many_folders_deep(tmp_path: Path) -> None:
    folder = tmp_path
    for k in range(FOLDERS_DEEP_MAX_COUNT + 1):
        folder.mkdir(exist_ok=True)
        (folder / f"run-{k}.jsonl").write_bytes(b"")
        folder /= "deeper"
    folder.mkdir()
    (folder / "run-too-deep.jsonl").write_bytes(b"")
    names = [Path(one).name for one in gather(str(tmp_path))]
    assert sorted(names) == [f"run-{k}.jsonl" for k in range(FOLDERS_DEEP_MAX_COUNT + 1)]


@pytest.mark.parametrize("beyond", [0, 1])
def test_an_exported_file_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch, beyond: int) -> None:
    size = EXPORTED.stat().st_size
    monkeypatch.setattr("runfold.replay.source.EXPORT_MAX_BYTES", size - beyond)
    if not beyond:
        assert load(EXPORTED).links
        return
    with pytest.raises(CannotRead, match=rf"has {size} bytes, more than export_max_bytes \({size - 1}\); archive the"):
        load(EXPORTED)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_kept_log_that_is_too_large_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, beyond: int
) -> None:
    storage = open_storage(StorageSpec(url=str(tmp_path), name="digits"))
    history = load(EXPORTED)
    lines = b"".join(export_lines(history))
    name = storage.inner("", f"{PREFIX}{history.run}{SUFFIX}")
    storage.files.write(name, zstandard.ZstdCompressor().compress(lines))
    monkeypatch.setattr("runfold.keepsake.KEPT_MAX_BYTES", len(lines) - beyond)
    found = kept(storage)
    assert (f"holds more than kept_max_bytes ({len(lines) - 1}): passed over" in caplog.text) == bool(beyond)
    assert (found is None) == bool(beyond)
    assert storage.files.read(name), "and it stays where it is"


@pytest.mark.parametrize("beyond", [0, 1])
def test_an_earlier_export_is_looked_at_so_far_and_left_when_it_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    head, last = b'{"traceEvents":', b'"otherData":{"run":"digits"}}'
    monkeypatch.setattr("runfold.overwriting.LOOKED_AT_MAX_BYTES", len(last) - beyond)
    path = tmp_path / "trace.perfetto"
    path.write_bytes(head + b"[]," + last)
    if beyond:
        with pytest.raises(UsageError, match=r"It was left as it is\. Name another file, or give --force"):
            check_overwriting(path, "perfetto")
    else:
        check_overwriting(path, "perfetto")
    assert path.read_bytes() == head + b"[]," + last


# --- what a broker answers


@pytest.fixture
def unwell() -> Iterator[tuple[str, list[bytes]]]:
    """A broker that is not well, and what it says of it."""
    answers: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(answers[0])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(("beyond", "said"), [(0, "the disk is full"), (1, "it says of itself: 503")])
def test_a_brokers_answer_is_read_up_to_a_length(
    unwell: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, beyond: int, said: str
) -> None:
    url, answers = unwell
    monkeypatch.setattr("runfold.brokerhealth.HEALTH_TIMEOUT_S", PATIENCE_S)
    answers.append(b'{"status": "unavailable", "error": "the disk is full"}')
    monkeypatch.setattr("runfold.brokerhealth.ANSWER_MAX_BYTES", len(answers[0]) - beyond)
    assert asyncio.run(broker_trouble(url)) == said


# --- what is told


class Slow(runfold.UserCallback):
    """Takes its time until it is let go on."""

    def __init__(self) -> None:
        self.at_work, self.go = threading.Event(), threading.Event()
        self.told: list[str] = []

    def on_event(self, happening: Happening) -> None:
        self.at_work.set()
        self.go.wait(PATIENCE_S)
        self.told.append(happening.hook)


class Nobody:
    """Looks at nothing."""

    def entry(self, told: object) -> None:
        """An entry."""

    def beat(self, beat: object) -> None:
        """A beat."""


@pytest.mark.parametrize("beyond", [0, 1])
def test_observers_that_are_too_far_behind_are_told_no_more_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, beyond: int
) -> None:
    monkeypatch.setattr("runfold.observers.BACKLOG_MAX_COUNT", 4)
    slow, end = Slow(), finished(Run(1).running().state, 7)
    watching = Watching(Observers([slow], tmp_path), Nobody())
    watching.finish(end)
    assert slow.at_work.wait(PATIENCE_S)
    for _ in range(4 + beyond):
        watching.finish(end)
    assert ("callbacks are 4 entries behind, and are told no more" in caplog.text) == bool(beyond)
    slow.go.set()
    watching.close()
    assert slow.told == [end.hook] * 5
    assert "have not come to an end" not in caplog.text


def test_reports_that_wait_for_ranks_are_so_many_and_then_the_oldest_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runfold.happenings.REPORTS_WAITING_MAX_COUNT", 3)
    run, told = Run(2).running(), list[str]()
    happenings = Happenings(lambda *_: None)
    seen = len(run.entries)
    state = fold_all(run.entries)
    happenings.of(run.entries[-1], state)
    for index in range(5):
        run.says(run.reported(0, index))
        entry = run.entries[seen + index]
        state = fold(state, entry)
        told += [f"{one.document['index']}" for one in happenings.of(entry, state) if one.hook == "after_report"]
    assert told == ["0", "1"], "of five, three wait"
    for index in range(5):
        run.says(run.reported(1, index))
        state = fold(state, run.entries[-1])
        told += [
            f"{one.document['index']}" for one in happenings.of(run.entries[-1], state) if one.hook == "after_report"
        ]
    assert told == ["0", "1", "2", "3", "4"], "the first two were told without the other rank, and are not told again"


# --- what is sent


def test_data_sets_are_no_larger_than_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"train": b"x" * 1000}
    parcels = Parcels()
    assert parcels.datasets(given, None) is not None
    size = len(parcels.blobs[0])
    monkeypatch.setattr("runfold.parcels.DATASETS_MAX_BYTES", size)
    assert parcels.datasets(given, None) is not None
    monkeypatch.setattr("runfold.parcels.DATASETS_MAX_BYTES", size - 1)
    refusing = Parcels()
    with pytest.raises(UsageError, match=rf"{size} bytes when pickled, over datasets_max_bytes \({size - 1}\); give a"):
        refusing.datasets(given, None)
    assert refusing.blobs == []


def nested(levels: int) -> object:
    """A lock in so many lists."""
    return [nested(levels - 1)] if levels else threading.Lock()


def test_what_cannot_be_pickled_is_looked_for_so_deep_and_among_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    item = "item 0 → " * (DEPTH_MAX_COUNT - 1) + "item 0"
    assert f"{item} (lock) cannot be pickled" in refusal(nested(DEPTH_MAX_COUNT))
    assert f"{item} (list) cannot be pickled" in refusal(nested(DEPTH_MAX_COUNT + 1))
    monkeypatch.setattr("runfold.unpicklable.PARTS_MAX_COUNT", 3)
    lock = threading.Lock()
    assert "item 2 (lock) cannot be pickled" in refusal([0, 1, lock])
    assert "the value of 2 (lock) cannot be pickled" in refusal({0: 0, 1: 1, 2: lock})
    assert "it cannot be pickled: " in refusal([0, 1, 2, lock])
    assert "it cannot be pickled: " in refusal({0: 0, 1: 1, 2: 2, 3: lock})


def refusal(what: object) -> str:
    """What is said of something that cannot be pickled."""
    with pytest.raises(UsageError) as refused:
        pickle_object(what)
    return str(refused.value)


# --- what is started


class Reached(Exception):
    """The options were taken."""


@pytest.mark.parametrize("controllers", [0, 1, CONTROLLERS_MAX_COUNT, CONTROLLERS_MAX_COUNT + 1])
def test_so_many_controllers_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, controllers: int) -> None:
    def find(_: object) -> None:
        raise Reached

    monkeypatch.setattr("runfold.cli.up.find", find)
    if 1 <= controllers <= CONTROLLERS_MAX_COUNT:
        with pytest.raises(Reached):
            up.command(controllers=controllers)
    else:
        with pytest.raises(UsageError, match=f"--controllers: must be 1 to 16, not {controllers}"):
            up.command(controllers=controllers)


def test_what_a_parent_says_is_read_in_pieces_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_serve, "READ_MAX_BYTES", 2)
    near, far = os.pipe()
    with os.fdopen(near, "rb") as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        os.write(far, b"stop!")
        os.close(far)
        pieces: list[bool] = []

        async def serve(told: _serve._Told) -> None:
            await told.stop.wait()
            pieces.append(told.orphaned.is_set())
            await told.orphaned.wait()
            pieces.append(told.orphaned.is_set())

        assert asyncio.run(_serve._until_told(serve)) == 0
    assert pieces == [False, True]
