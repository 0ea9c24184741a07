"""A run's directory: found by URL, marked, seen, and its names checked; the same on every kind of filesystem."""

from __future__ import annotations

import errno
import os
import pickle
import re
from pathlib import Path

import fsspec
import pytest

from runfold.events.tasks import Task
from runfold.workers import keeper
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.errors import CheckpointNameError, StorageError
from runfold.workers.files import _LocalFiles, _RemoteFiles
from runfold.workers.layout import StorageSpec
from runfold.workers.retry import Retries, retried
from runfold.workers.storage import Storage, as_storage_error, check_name, default_name, open_storage


@pytest.fixture(params=["path", "file", "memory", "given", "options"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    memory = fsspec.filesystem("memory")
    if memory.exists("/runs"):
        memory.rm("/runs", recursive=True)
    given = pickle.dumps(fsspec.filesystem("memory"))
    specs = {
        "path": StorageSpec(url=str(tmp_path / "runs"), name="digits"),
        "file": StorageSpec(url=f"file://{tmp_path}/runs/", name="digits"),
        "memory": StorageSpec(url="memory://runs", name="digits"),
        "given": StorageSpec(url="/runs", name="digits", filesystem=given),
        "options": StorageSpec(url="memory://runs", name="digits", options={"skip_instance_cache": False}),
    }
    return open_storage(specs[request.param])


def test_files_come_back_as_they_were_put(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.write_bytes(b"w" * 100_000)
    copied = storage.files.put(source, storage.path("c/deep/model"), chunk_bytes=1000)
    assert storage.files.find(storage.path("c")) == {"deep/model": 100_000}
    assert storage.files.digest(storage.path("c/deep/model")) == copied
    assert storage.files.get(storage.path("c/deep/model"), tmp_path / "a" / "b") == copied
    assert (tmp_path / "a" / "b").read_bytes() == source.read_bytes()
    assert storage.files.folders(storage.root) == ["c"]


def test_a_file_where_the_storage_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StorageError, match=rf"{tmp_path}/file.* cannot be written: .*name a directory by storage_path"):
        open_storage(StorageSpec(url=str(tmp_path / "file"), name="digits")).mark("r1")
    assert (tmp_path / "file").read_text() == "precious"


class Failing(_LocalFiles):
    """A file system that takes nothing."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tries = 0

    def make(self, path: str) -> None:
        self.tries += 1
        raise OSError(self.number, os.strerror(self.number), path)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM])
def test_a_storage_that_nobody_can_write_to_is_told_at_once(tmp_path: Path, number: int) -> None:
    files = Failing(number)
    storage = Storage(StorageSpec(url=str(tmp_path), name="digits"), files, str(tmp_path / "digits"))
    with pytest.raises(StorageError, match=f"digits cannot be written: {re.escape(os.strerror(number))}.*storage_path"):
        retried(lambda: storage.mark("r1"), Retries(), "marking")
    assert files.tries == 1


def test_a_name_that_no_file_system_takes_is_told(tmp_path: Path) -> None:
    for spec in (
        StorageSpec(url=str(tmp_path), name="n" * 300),
        StorageSpec(url=str(tmp_path / ("d" * 300)), name="n"),
    ):
        with pytest.raises(StorageError, match="cannot be written: File name too long"):
            open_storage(spec).mark("r1")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_what_may_pass_is_tried_again_and_then_told_with_the_storage(tmp_path: Path, number: int) -> None:
    files, spec = Failing(number), StorageSpec(url=str(tmp_path), name="digits")
    storage = Storage(spec, files, str(tmp_path / "digits"))
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as failed:
        retried(lambda: storage.mark("r1"), Retries(retries_max=2, backoff_s=0.0), "marking")
    assert files.tries == 3
    error = as_storage_error(failed.value, spec)
    assert (type(error), str(error)) == (
        StorageError,
        f"storage {tmp_path}/digits: {tmp_path}/digits: {os.strerror(number)}",
    )


def test_bugs_and_what_is_told_already_are_as_they_are() -> None:
    spec = StorageSpec(url="s3://bucket", name="digits")
    for error in (KeyError("a"), StorageError("x"), CheckpointNameError("y")):
        assert as_storage_error(error, spec) is error
    assert str(as_storage_error(TimeoutError("too long"), spec)) == "storage s3://bucket/digits: TimeoutError: too long"


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENAMETOOLONG])
def test_a_keeper_tells_what_a_storage_fails_at_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "there")

    monkeypatch.setattr(keeper, "delete", fails)
    task = Task(id="delete:1", kind="delete", arguments={"names": ["c"], "sealed": True})
    answer = keeper._answered(keeper.Ask(task=task, run="r1", spec=StorageSpec(url=str(tmp_path), name="digits")))
    assert answer.error is not None
    assert (answer.error.type, answer.error.kind) == ("StorageError", "storage")
    assert answer.error.message == f"storage {tmp_path}/digits: there: {os.strerror(number)}"


def test_what_is_missing_is_no_trouble_to_remove(storage: Storage) -> None:
    assert storage.files.find(storage.path("none")) == {}
    assert storage.files.folders(storage.path("none")) == []
    storage.files.remove(storage.path("none"))
    storage.files.remove_files([storage.path("none/file")])
    with pytest.raises(FileNotFoundError):
        storage.files.read(storage.path("none"))


def test_a_folder_is_removed_with_all_in_it(storage: Storage) -> None:
    storage.files.write(storage.path("c/a"), b"1")
    storage.files.write(storage.path("c/b"), b"2")
    storage.files.remove_files([storage.path("c/a")])
    assert storage.files.find(storage.path("c")) == {"b": 1}
    storage.files.remove(storage.path("c"))
    assert not storage.files.exists(storage.path("c"))


def test_the_marker_says_who_writes_here_and_who_did(storage: Storage) -> None:
    assert storage.mark("digits-1") is None
    before = storage.mark("digits-2")
    assert before is not None
    assert before.run == "digits-1"


def test_a_checkpoint_in_it_has_a_name_and_others_have_none(storage: Storage, tmp_path: Path) -> None:
    assert storage.name_of(storage.checkpoint("a/b")) == "a/b"
    assert storage.name_of(Checkpoint(tmp_path / "elsewhere")) is None
    assert storage.name_of(storage.checkpoint(".")) is None
    assert storage.name_of(Checkpoint("memory://elsewhere")) is None


def test_storage_that_is_not_shared_is_told_with_advice(storage: Storage) -> None:
    storage.check_visible("node-b")
    checked = Storage(StorageSpec(url="u", name="n", checked=True), storage.files, storage.root)
    with pytest.raises(StorageError, match=r"cannot be seen on node-b.*shared filesystem"):
        checked.check_visible("node-b")
    checked.mark("digits-1")
    checked.check_visible("node-b")


def test_a_write_that_vanishes_is_found_at_once(tmp_path: Path) -> None:
    class Forgetful(_LocalFiles):
        def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
            pass

    spec = StorageSpec(url=str(tmp_path), name="digits")
    with pytest.raises(StorageError, match="cannot be read back"):
        Storage(spec, Forgetful(), str(tmp_path / "digits")).mark("digits-1")


def test_a_rival_that_marks_at_the_same_time_is_named(tmp_path: Path) -> None:
    class Contested(_LocalFiles):
        def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
            super().write(path, data.replace(b"digits-1", b"rival-9"))

    spec = StorageSpec(url=str(tmp_path), name="digits")
    with pytest.raises(StorageError, match="run rival-9 writes there too"):
        Storage(spec, Contested(), str(tmp_path / "digits")).mark("digits-1")


def test_a_local_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    class Torn(_LocalFiles):
        def _replace(self, target: Path, fill: object, *, durable: bool = True) -> tuple[int, str]:
            def torn(writing: object) -> tuple[int, str]:
                raise OSError("the disk is full")

            return super()._replace(target, torn)

    (tmp_path / "source").write_text("x")
    with pytest.raises(OSError, match="full"):
        Torn().put(tmp_path / "source", str(tmp_path / "there" / "file"))
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("name", ["checkpoint_000001_1", "epoch 3", "a/b-c.d", "Ä"])
def test_names_of_directories(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "/a", "a//b", "..", "a/../b", ".", "a\\b", "a\nb", ".runfold", "a" * 256])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(CheckpointNameError, match="checkpoint_dir_name"):
        check_name(name)


def test_the_default_name_has_index_and_attempt() -> None:
    assert default_name(7, 2) == "checkpoint_000007_2"


def test_google_storage_is_known_by_its_url() -> None:
    with pytest.raises(StorageError, match=r"gs://bucket/runs.*gcsfs"):
        open_storage(StorageSpec(url="gs://bucket/runs", name="digits"))


def test_trouble_is_tried_again_so_often_and_no_oftener() -> None:
    waits: list[float] = []
    calls = 0

    def broken() -> str:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise TimeoutError("slow down")
        return "done"

    assert retried(broken, Retries(retries_max=2, backoff_s=1.0), "put", sleep=waits.append) == "done"
    assert [round(wait) for wait in waits] == [1, 2]
    calls = 0
    with pytest.raises(TimeoutError, match="slow down"):
        retried(broken, Retries(retries_max=1), "put", sleep=waits.append)


def test_an_error_of_the_program_is_not_tried_again() -> None:
    def wrong() -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        retried(wrong, Retries(), "put", sleep=lambda _: pytest.fail("waited"))


def test_object_stores_get_no_folders() -> None:
    made: list[str] = []

    class Bucket:
        protocol = ("s3", "s3a")

        def makedirs(self, path: str, *, exist_ok: bool) -> None:
            made.append(path)

        def pipe_file(self, path: str, value: bytes) -> None:
            pass

    _RemoteFiles(Bucket()).write("bucket/a/b", b"")  # type: ignore[arg-type]  # as much of one as is used
    assert made == []
