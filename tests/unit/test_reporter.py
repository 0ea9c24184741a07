"""Reports with files: their order, their modes, their failures. A socket pair stands for the runner."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from runfold.events.config import CheckpointConfig
from runfold.workers import session, upload
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.errors import CheckpointClashError, CheckpointNameError, UploadError
from runfold.workers.files import _LocalFiles
from runfold.workers.frames import HEADER, frame
from runfold.workers.layout import Part, StorageSpec
from runfold.workers.link import FROM_RANK, Asked, FromRank, Go, Report, Start, Uploading, Wish
from runfold.workers.ranklink import RankLink
from runfold.workers.session import CheckpointUploadMode
from runfold.workers.waits import taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ASYNC, NO_UPLOAD = CheckpointUploadMode.ASYNC, CheckpointUploadMode.NO_UPLOAD
PATIENCE_S = 30.0


class Rank:
    """A rank of one, and what it says."""

    def __init__(self, folder: Path, **config: int) -> None:
        self.folder = folder
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(PATIENCE_S)
        self.start = Start(
            run="digits-1",
            name="digits",
            attempt=2,
            rank=0,
            life=1,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            node_rank=0,
            entrypoint="a:b",
            storage=StorageSpec(url=str(folder / "runs"), name="digits"),
            checkpointing=msgspec.structs.replace(CheckpointConfig(upload_retries_max=0), **config),
        )
        self.session = session.Session(RankLink(self.theirs), self.start, Go(first_index=10, checkpoint="old"))
        session.activate(self.session)

    def close(self) -> None:
        session.activate(None)
        self.ours.close()
        self.theirs.close()

    def hears(self) -> FromRank:
        (length,) = HEADER.unpack(self.ours.recv(HEADER.size, socket.MSG_WAITALL))
        return FROM_RANK.decode(self.ours.recv(length, socket.MSG_WAITALL))

    def report(self) -> Report:
        while not isinstance(message := self.hears(), Report):
            pass
        return message

    def tell(self, message: object) -> None:
        self.ours.sendall(frame(msgspec.msgpack.encode(message), 1 << 20))

    def saved(self, text: str = "m", name: str = "local") -> Checkpoint:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "model").write_text(text)
        return Checkpoint.from_directory(folder)

    def part(self, name: str) -> Part:
        data = self.session.storage.files.read(self.session.storage.inner(name, "part-0.json"))
        return msgspec.json.decode(data, type=Part)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds every upload of a file until it is set."""
    opened = threading.Event()
    put = _LocalFiles.put

    def held(self: _LocalFiles, source: Path, path: str, chunk_bytes: int = 1) -> tuple[int, str]:
        assert opened.wait(PATIENCE_S)
        return put(self, source, path, chunk_bytes)

    monkeypatch.setattr(_LocalFiles, "put", held)
    return opened


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(_LocalFiles, "put", fail)


def test_files_are_there_before_the_report_says_so(rank: Rank) -> None:
    session.report({"loss": 0.5, "step": 3}, checkpoint=rank.saved())
    assert rank.hears() == Uploading("checkpoint_000010_2", 0)
    report = rank.report()
    assert (report.index, report.step, report.checkpoint, report.named) == (0, 3, "checkpoint_000010_2", False)
    part = rank.part("checkpoint_000010_2")
    assert (part.run, part.attempt, part.index, part.metrics) == ("digits-1", 2, 10, {"loss": 0.5, "step": 3})
    assert [file.path for file in part.files] == ["model"]
    assert (rank.folder / "local").exists()


def test_the_checkpoint_to_begin_from_is_the_one_given_then_the_own_latest(rank: Rank) -> None:
    given = session.get_checkpoint()
    assert given is not None
    assert given.path.endswith("runs/digits/old")
    assert rank.hears() == Asked()
    session.report({}, checkpoint=rank.saved("mine"))
    own = session.get_checkpoint()
    assert own is not None
    with own.as_directory() as folder:
        assert Path(folder, "model").read_text() == "mine"
    assert not isinstance(rank.hears(), Asked)


def test_order_is_kept_whatever_the_mode(rank: Rank, gate: threading.Event) -> None:
    session.report({"n": 0}, checkpoint=rank.saved(name="a"), checkpoint_upload_mode=ASYNC)
    session.report({"n": 1})
    session.report({"n": 2}, checkpoint=rank.saved(name="b"), checkpoint_upload_mode=ASYNC)
    session.report({"n": 3})
    later = threading.Thread(target=lambda: session.report({"n": 4}, checkpoint=rank.saved(name="c")))
    assert rank.hears() == Uploading("checkpoint_000010_2", 0)
    later.start()
    gate.set()
    reports = [rank.report() for _ in range(5)]
    later.join(PATIENCE_S)
    assert [report.metrics["n"] for report in reports] == [0, 1, 2, 3, 4]
    assert [report.index for report in reports] == [0, 1, 2, 3, 4]
    assert [report.checkpoint for report in reports] == [
        "checkpoint_000010_2",
        None,
        "checkpoint_000012_2",
        None,
        "checkpoint_000014_2",
    ]
    rank.session.finish()
    assert not (rank.folder / "a").exists(), "deleted after an asynchronous upload"
    assert (rank.folder / "c").exists()


def waits_for(gate: threading.Event, call: Callable[[], None]) -> None:
    """See that a call of the rank's does not return before the gate is open, and does then."""
    done = threading.Event()

    def calls() -> None:
        call()
        done.set()

    thread = threading.Thread(target=calls)
    thread.start()
    assert not done.wait(0.1)
    gate.set()
    assert done.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_only_so_many_uploads_wait(tmp_path: Path, gate: threading.Event) -> None:
    rank = Rank(tmp_path, upload_queue_max=1)
    session.report({}, checkpoint=rank.saved(name="a"), checkpoint_upload_mode=ASYNC)
    waits_for(gate, lambda: session.report({}, checkpoint=rank.saved(name="b"), checkpoint_upload_mode=ASYNC))
    rank.session.finish()
    rank.close()


def test_so_many_reports_wait_behind_an_upload_and_none_is_lost(
    rank: Rank, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runfold.workers.reporter.REPORTS_HELD_MAX_COUNT", 3)
    session.report({"k": 0}, checkpoint=rank.saved(), checkpoint_upload_mode=ASYNC)
    for k in (1, 2):
        session.report({"k": k})
    waits_for(gate, lambda: session.report({"k": 3}))
    rank.session.finish()
    told = [rank.report() for _ in range(4)]
    assert [(one.index, one.metrics) for one in told] == [(k, {"k": k}) for k in range(4)]


def test_a_local_directory_may_stay_or_go(rank: Rank) -> None:
    session.report({}, checkpoint=rank.saved(name="a"), delete_local_checkpoint_after_upload=True)
    assert not (rank.folder / "a").exists()
    mode = CheckpointUploadMode.ASYNC
    session.report({}, rank.saved(name="b"), None, mode, delete_local_checkpoint_after_upload=False)
    rank.session.finish()
    assert (rank.folder / "b").exists()
    with pytest.raises(ValueError, match="lies in"):
        session.report({}, Checkpoint.from_directory(rank.folder), delete_local_checkpoint_after_upload=True)


def test_files_in_the_storage_already_are_taken_in_place(rank: Rank) -> None:
    with pytest.raises(CheckpointNameError, match="does not lie in the run's storage"):
        session.report({}, checkpoint=rank.saved(), checkpoint_upload_mode=NO_UPLOAD)
    refused = rank.report()
    assert (refused.index, refused.checkpoint) == (0, None)
    assert "CheckpointNameError" in (refused.upload_error or "")
    rank.session.storage.files.write(rank.session.storage.path("mine/m"), b"model")
    session.report({}, rank.session.storage.checkpoint("mine"), "ignored", NO_UPLOAD)
    report = rank.report()
    assert (report.index, report.checkpoint, report.named) == (1, "mine", True)
    assert rank.part("mine").files[0].size == 5


def test_an_upload_function_of_ones_own(rank: Rank) -> None:
    def own(checkpoint: Checkpoint, name: str) -> Checkpoint:
        rank.session.storage.files.write(rank.session.storage.path(f"{name}/packed"), b"zip")
        return rank.session.storage.checkpoint(name)

    session.report({}, checkpoint=rank.saved(), checkpoint_upload_fn=own)
    assert rank.report().checkpoint == "checkpoint_000010_2"
    assert rank.part("checkpoint_000010_2").files[0].path == "packed"

    def elsewhere(checkpoint: Checkpoint, name: str) -> Checkpoint:
        rank.session.storage.files.write(rank.session.storage.path("else/m"), b"m")
        return rank.session.storage.checkpoint("else")

    session.report({}, checkpoint=rank.saved(), checkpoint_upload_fn=elsewhere)
    report = rank.report()
    assert (report.checkpoint, report.named) == ("else", True)
    with pytest.raises(ValueError, match="must return a Checkpoint, not str"):
        session.report({}, rank.saved(), checkpoint_upload_fn=lambda _, name: name)  # type: ignore[arg-type,return-value]  # what the test is about
    with pytest.raises(CheckpointNameError):
        session.report({}, rank.saved(), checkpoint_upload_fn=lambda given, _: given)


def test_what_an_upload_function_raises_reaches_the_caller_and_the_report_keeps_its_place(rank: Rank) -> None:
    def bad(checkpoint: Checkpoint, name: str) -> Checkpoint:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        session.report({"n": 0}, rank.saved(), checkpoint_upload_fn=bad)
    session.report({"n": 1})
    reports = [rank.report(), rank.report()]
    assert [(report.index, report.metrics["n"], report.checkpoint) for report in reports] == [
        (0, 0, None),
        (1, 1, None),
    ]


def test_an_upload_that_fails_raises_and_its_metrics_are_recorded(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(UploadError, match=r"(?s)report 0 was not uploaded: OSError: the disk is full.*is recorded"):
        session.report({"n": 0}, checkpoint=rank.saved())
    report = rank.report()
    assert (report.metrics, report.checkpoint) == ({"n": 0}, None)
    storage = rank.session.storage.url
    assert report.upload_error == (
        f"OSError: the disk is full (uploading checkpoint_000010_2/model); Storage: {storage}"
    )


def test_so_many_failures_in_a_row_may_be_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, upload_failure_limit=1)
    broken(monkeypatch)
    session.report({}, checkpoint=rank.saved())
    with pytest.raises(UploadError, match="2 times in a row"):
        session.report({}, checkpoint=rank.saved())
    rank.close()


def test_failed_asynchronous_uploads_are_counted_and_past_the_limit_the_next_call_says_so(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    for _ in range(4):
        session.report({}, checkpoint=rank.saved(), checkpoint_upload_mode=ASYNC)
    assert all(str(rank.report().upload_error).startswith("OSError: the disk is full (uploading ") for _ in range(4))
    with pytest.raises(UploadError, match="4 times in a row"):
        rank.session.finish()
    with pytest.raises(UploadError, match="4 times in a row"):
        session.report({})
    session.report({"goes": "on"})
    assert rank.report().metrics == {"goes": "on"}


def test_a_directory_that_is_not_there_is_an_error_at_once_in_every_mode(rank: Rank) -> None:
    for mode in (CheckpointUploadMode.SYNC, ASYNC):
        with pytest.raises(FileNotFoundError, match="gone"):
            session.report({}, Checkpoint.from_directory(rank.folder / "gone"), checkpoint_upload_mode=mode)
    session.report({"n": 0})
    assert rank.report().index == 0


def test_a_name_that_is_no_directory_or_taken_is_refused(rank: Rank) -> None:
    with pytest.raises(CheckpointNameError, match="names no directory"):
        session.report({}, rank.saved(), "../x")
    session.report({}, rank.saved(), "best")
    assert rank.report().named
    with pytest.raises(CheckpointClashError, match="reported by this rank before"):
        session.report({}, rank.saved(), "best")


def test_an_interrupt_of_an_upload_leaves_the_line_whole(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken_off:
        broken_off.setattr(upload.Uploads, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.report({"n": 0}, checkpoint=rank.saved())
    session.report({"n": 1}, checkpoint=rank.saved())
    assert [(report.index, report.checkpoint) for report in (rank.report(), rank.report())] == [
        (0, None),
        (1, "checkpoint_000011_2"),
    ]


def test_reports_of_many_threads_are_numbered_without_a_gap(rank: Rank) -> None:
    def some(number: int) -> None:
        for turn in range(5):
            checkpoint = rank.saved(name=f"t{number}-{turn}") if turn % 2 else None
            mode = ASYNC if turn == 3 else CheckpointUploadMode.SYNC
            session.report({"thread": number}, checkpoint=checkpoint, checkpoint_upload_mode=mode)

    threads = [threading.Thread(target=some, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    reports = [rank.report() for _ in range(20)]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [report.index for report in reports] == list(range(20))
    for report in reports:
        if report.checkpoint is not None:
            assert report.checkpoint == f"checkpoint_{10 + report.index:06d}_2"


def test_a_wish_for_a_checkpoint_is_seen_until_one_is_reported(rank: Rank) -> None:
    assert not session.should_checkpoint()
    rank.tell(Wish("r1"))
    deadline = time.monotonic() + PATIENCE_S
    while not session.should_checkpoint() and time.monotonic() < deadline:
        pass
    assert session.should_checkpoint()
    session.report({}, checkpoint=rank.saved())
    assert not session.should_checkpoint()
    rank.tell(Wish("r2"))
    while not session.should_checkpoint() and time.monotonic() < deadline:
        pass
    rank.tell(Wish(None))
    while session.should_checkpoint() and time.monotonic() < deadline:
        pass
    assert not session.should_checkpoint()


def test_what_a_report_with_files_took_is_told_with_the_next(rank: Rank) -> None:
    taken()
    session.report({"step": 1}, checkpoint=rank.saved())
    session.report({"step": 2})
    assert rank.report().spent_s == {}
    assert rank.report().spent_s["checkpoint_save"] > 0
