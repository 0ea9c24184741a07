"""Sealing and what surrounds it, on local files and in memory: a checkpoint is whole, or it is not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from pathlib import Path

import fsspec
import msgspec
import pytest

from runfold.events.tasks import Task
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.errors import CheckpointClashError, CheckpointNameError, StorageError, UploadError
from runfold.workers.files import TEMPORARY
from runfold.workers.keeper import Ask, done
from runfold.workers.layout import MANIFEST, StorageSpec, part_name
from runfold.workers.retry import Retries
from runfold.workers.sealing import delete, doubt, look, seal
from runfold.workers.storage import Storage, default_name, open_storage
from support.sealing import NAME, local, manifest, order, storage, two_ranks, uploads

__all__ = ["storage"]


@pytest.mark.parametrize("left", [(), (0,), (0, 1)])
def test_what_is_sealed_again_is_as_it_is_and_what_the_first_one_left_when_it_was_killed_goes(
    storage: Storage, tmp_path: Path, left: tuple[int, ...]
) -> None:
    two_ranks(storage, tmp_path)
    parts = {rank: storage.files.read(storage.inner(NAME, part_name(rank))) for rank in left}
    sealed = seal(storage, "r1", order(0, 1))
    for rank, data in parts.items():
        storage.files.write(storage.inner(NAME, part_name(rank)), data)
    if storage.files.local:
        Path(storage.inner(NAME, f"{TEMPORARY}0")).write_text("half a manif")
    before = manifest(storage)
    assert seal(storage, "r1", order(0, 1)) == sealed
    assert manifest(storage) == before
    assert not [file for file in storage.files.find(storage.path(NAME)) if "part-" in file]
    if storage.files.local:
        assert {path.name for path in Path(storage.inner(NAME, "")).iterdir()} == {MANIFEST}


def test_the_manifest_names_every_file_its_rank_size_and_digest(storage: Storage, tmp_path: Path) -> None:
    two_ranks(storage, tmp_path)
    sealed = seal(storage, "r1", order(0, 1, world_size=4))
    found = manifest(storage)
    assert [(file.path, file.rank, file.size) for file in found.files] == [("a", 0, 1), ("b", 1, 2), ("shared", 0, 4)]
    assert found.files[1].sha256 == hashlib.sha256(b"bb").hexdigest()
    assert found.ranks_without_files == (2, 3)
    assert (sealed.size_bytes, sealed.metrics) == (7, {"loss": 1})
    data = storage.files.read(storage.inner(NAME, MANIFEST))
    assert sealed.manifest_digest == hashlib.sha256(data).hexdigest()
    assert not [file for file in storage.files.find(storage.path(NAME)) if "part-" in file]
    with storage.checkpoint(NAME).as_directory() as folder:
        assert Path(folder, "b").read_text() == "bb"


def test_sealing_again_is_the_same_seal(storage: Storage, tmp_path: Path) -> None:
    two_ranks(storage, tmp_path)
    assert seal(storage, "r1", order(0, 1)) == seal(storage, "r1", order(0, 1))
    with pytest.raises(StorageError, match=r"is sealed already.*run r1"):
        seal(storage, "r2", order(0, 1))


def test_a_part_that_cannot_be_seen_is_told_with_advice(storage: Storage, tmp_path: Path) -> None:
    two_ranks(storage, tmp_path)
    with pytest.raises(StorageError, match=r"what rank 2 uploaded.*cannot be seen.*shared filesystem"):
        seal(storage, "r1", order(0, 1, 2))
    assert not storage.files.exists(storage.inner(NAME, MANIFEST))


def test_the_files_of_another_attempt_are_not_taken_for_this_ones(storage: Storage, tmp_path: Path) -> None:
    uploads(storage, 0, attempt=1).copy(local(tmp_path / "a", a="old"), "mine", 0, {}, named=False)
    with pytest.raises(StorageError, match="are of run r1, attempt 1"):
        seal(storage, "r1", order(0, name="mine", attempt=2))
    uploads(storage, 0, attempt=2).copy(local(tmp_path / "b", b="new"), "mine", 0, {})
    seal(storage, "r1", order(0, name="mine", attempt=2))
    left = [file for file in storage.files.find(storage.path("mine")) if not file.startswith(".runfold")]
    assert left == ["b"], "what the attempt before had left is gone"


@pytest.mark.parametrize(("change", "words"), [("", "is missing"), ("more", "has 4 bytes")])
def test_a_file_that_is_not_what_was_uploaded_is_named(
    storage: Storage, tmp_path: Path, change: str, words: str
) -> None:
    two_ranks(storage, tmp_path)
    if change:
        storage.files.write(storage.path(f"{NAME}/b"), change.encode())
    else:
        storage.files.remove_files([storage.path(f"{NAME}/b")])
    with pytest.raises(StorageError, match=rf"b of rank 1 {words}"):
        seal(storage, "r1", order(0, 1))


def test_one_file_of_several_ranks_is_as_the_last_of_them_left_it(storage: Storage, tmp_path: Path) -> None:
    uploads(storage, 0).copy(local(tmp_path / "a", model="of 0"), NAME, 0, {}, named=False)
    uploads(storage, 1).copy(local(tmp_path / "b", model="of 1"), NAME, 0, {}, named=False)
    seal(storage, "r1", order(0, 1))
    assert [(file.path, file.rank) for file in manifest(storage).files] == [("model", 1)]
    assert Path(storage.checkpoint(NAME).to_directory(tmp_path / "got"), "model").read_text() == "of 1"


def test_one_that_none_of_them_has_written_is_no_checkpoint(storage: Storage, tmp_path: Path) -> None:
    uploads(storage, 0).copy(local(tmp_path / "a", model="of 0"), NAME, 0, {}, named=False)
    uploads(storage, 1).copy(local(tmp_path / "b", model="of 1"), NAME, 0, {}, named=False)
    storage.files.write(storage.path(f"{NAME}/model"), b"torn")
    with pytest.raises(StorageError, match="model"):
        seal(storage, "r1", order(0, 1))


# --- deleting


def test_only_what_is_told_is_deleted_and_sealed_ones_by_name_alone(storage: Storage, tmp_path: Path) -> None:
    two_ranks(storage, tmp_path)
    assert delete(storage, ["none"], sealed=True) == ["none"]
    seal(storage, "r1", order(0, 1))
    assert delete(storage, [NAME], sealed=False) == []
    assert storage.files.exists(storage.path(NAME))
    assert delete(storage, [NAME], sealed=True) == [NAME]
    assert not storage.files.find(storage.path(NAME))


def test_a_checkpoint_within_anothers_directory_stays(storage: Storage, tmp_path: Path) -> None:
    for name in ("a", "a/b"):
        uploads(storage).copy(local(tmp_path / "x", model="m"), name, 0, {})
        seal(storage, "r1", order(0, name=name))
    delete(storage, ["a"], sealed=True)
    assert not storage.files.exists(storage.path("a/model"))
    assert storage.files.exists(storage.path("a/b/model"))


def test_what_earlier_attempts_had_begun_is_swept_by_name(storage: Storage, tmp_path: Path) -> None:
    for name in ("checkpoint_000000_1", "checkpoint_000001_1", "checkpoint_000002_2", "mine"):
        uploads(storage).copy(local(tmp_path / "x", m="m"), name, 0, {}, named=False)
    seal(storage, "r1", order(0, name="checkpoint_000000_1", world_size=1))
    task = Task(id="t", kind="delete", arguments={"names": [], "before": 2, "sealed": False})
    assert done(Ask(task=task, run="r1", spec=storage.spec)).value == ["checkpoint_000001_1"]
    assert storage.files.folders(storage.root) == ["checkpoint_000000_1", "checkpoint_000002_2", "mine"]


# --- looking


def test_what_an_earlier_run_left_is_found_and_what_was_never_whole_is_gone(storage: Storage, tmp_path: Path) -> None:
    assert look(storage, "r1", None).run is None
    for index, name in enumerate(("checkpoint_000000_1", "epoch/1", "checkpoint_000002_1")):
        uploads(storage).copy(local(tmp_path / "x", m="m"), name, index, {"eval": {"loss": index}}, named=False)
        if index < 2:
            seal(storage, "r1", order(0, name=name, index=index, world_size=1))
    doubt(storage, "r1", ["epoch/1"])
    found = look(storage, "r2", "eval/loss")
    assert found.run == "r1"
    assert [(one.name, one.index, one.score) for one in found.checkpoints] == [
        ("checkpoint_000000_1", 0, 0.0),
        ("epoch/1", 1, 1.0),
    ]
    assert found.doubtful == ("epoch/1",)
    assert not storage.files.find(storage.path("checkpoint_000002_1"))
    assert look(storage, "r2", "eval/none").checkpoints[0].score is None


def test_a_damaged_one_beside_whole_ones_is_told_and_stays(storage: Storage, tmp_path: Path) -> None:
    for index, name in enumerate(("checkpoint_000000_1", "checkpoint_000001_1", "checkpoint_000002_1")):
        uploads(storage).copy(local(tmp_path / "x", m="m"), name, index, {}, named=False)
        if index < 2:
            seal(storage, "r1", order(0, name=name, index=index, world_size=1))
    storage.files.write(storage.inner(NAME, MANIFEST), b"{")
    found = look(storage, "r2", None)
    assert ([one.name for one in found.checkpoints], found.damaged) == (["checkpoint_000001_1"], (NAME,))
    assert storage.files.read(storage.inner(NAME, MANIFEST)) == b"{"
    assert storage.files.read(storage.path(f"{NAME}/m")) == b"m"
    assert not storage.files.find(storage.path("checkpoint_000002_1"))
    storage.files.write(storage.inner("checkpoint_000001_1", MANIFEST), b"{")
    uploads(storage).copy(local(tmp_path / "x", m="m"), "checkpoint_000003_1", 3, {}, named=False)
    with pytest.raises(StorageError, match=r"checkpoint_000001_1/\.runfold/manifest\.json is damaged"):
        look(storage, "r2", None)
    assert storage.files.find(storage.path("checkpoint_000003_1"))  # with nothing to begin from nothing is deleted


# --- by the keeper


def test_the_keeper_does_what_a_task_says(storage: Storage, tmp_path: Path) -> None:
    def does(kind: str, **arguments: object) -> object:
        task = Task(id="t", kind=kind, arguments=msgspec.to_builtins(arguments))
        return done(Ask(task=task, run="r1", spec=storage.spec))

    two_ranks(storage, tmp_path)
    args = msgspec.to_builtins(order(0, 1))
    sealed = done(Ask(task=Task(id="t", kind="seal", arguments=args), run="r1", spec=storage.spec)).sealed
    assert sealed is not None
    does("doubt", names=[NAME])
    assert does("open", attribute="loss").value["checkpoints"][0]["score"] == 1.0  # type: ignore[attr-defined]  # Answer
    assert does("delete", names=[NAME], sealed=True).value == [NAME]  # type: ignore[attr-defined]  # Answer
    with pytest.raises(CheckpointNameError):
        does("delete", names=["../other-run"], sealed=True)
    with pytest.raises(StorageError, match="no task of kind 'dance'"):
        does("dance")


# --- uploading


def test_a_name_that_is_taken_is_the_reports_error(storage: Storage, tmp_path: Path) -> None:
    one = uploads(storage)
    one.copy(local(tmp_path / "x", m="m"), "mine", 0, {})
    with pytest.raises(CheckpointClashError, match="reported by this rank before"):
        one.copy(local(tmp_path / "x", m="m"), "mine", 1, {})
    seal(storage, "r1", order(0, name="mine"))
    with pytest.raises(CheckpointClashError, match="is a committed checkpoint"):
        uploads(storage, attempt=2).copy(local(tmp_path / "x", m="m"), "mine", 2, {})


@pytest.mark.parametrize("call", ["exists", "find", "read"])
def test_looking_into_a_name_is_tried_again(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    one = uploads(storage)
    one.copy(local(tmp_path / "x", m="m"), "mine", 0, {})
    asked, tried = getattr(storage.files, call), 0

    def fails_once(path: str) -> object:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise TimeoutError("slow down")
        return asked(path)

    monkeypatch.setattr(storage.files, call, fails_once)
    with pytest.raises(UploadError, match="slow down"):
        one.copy(local(tmp_path / "x", m="m"), "mine", 1, {})
    tried = 0
    monkeypatch.setattr(one, "_retries", Retries(retries_max=1, backoff_s=0.0))
    with pytest.raises(CheckpointClashError, match="reported by this rank before"):
        one.copy(local(tmp_path / "x", m="m"), "mine", 1, {})
    assert tried == 2


def test_a_part_that_is_gone_once_it_is_read_is_passed_over(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = uploads(storage)
    one.copy(local(tmp_path / "x", m="m"), "mine", 0, {})

    def gone(path: str) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(storage.files, "read", gone)
    one.copy(local(tmp_path / "x", m="m"), "mine", 1, {})


def test_a_rank_of_an_attempt_that_is_over_touches_nothing_of_a_later_one(storage: Storage, tmp_path: Path) -> None:
    """By runfold's own names it cannot; by a name of the user's it is told."""
    zombie, present = uploads(storage, attempt=1), uploads(storage, attempt=2)
    present.copy(local(tmp_path / "new", m="new"), "mine", 1, {})
    before = {
        file: storage.files.read(storage.path(f"mine/{file}")) for file in storage.files.find(storage.path("mine"))
    }
    with pytest.raises(StorageError, match=r"being written by attempt 2 of this run .*attempt 1 is over, and touches"):
        zombie.copy(local(tmp_path / "old", m="old"), "mine", 0, {})
    with pytest.raises(StorageError, match="attempt 1 is over"):
        zombie.take("mine", 0, {})
    after = {
        file: storage.files.read(storage.path(f"mine/{file}")) for file in storage.files.find(storage.path("mine"))
    }
    assert after == before
    seal(storage, "r1", order(0, name="mine", attempt=2, index=1))
    names = {default_name(3, attempt) for attempt in (1, 2)}
    assert len(names) == 2


def test_files_that_are_there_are_taken_as_they_are(storage: Storage, tmp_path: Path) -> None:
    storage.files.write(storage.path("there/deep/m"), b"model")
    storage.files.write(storage.path("there/n"), b"more")
    uploads(storage).take("there", 0, {})
    assert seal(storage, "r1", order(0, name="there")).size_bytes == 9
    storage.files.write(storage.path("other/m"), b"model")
    storage.files.write(storage.path("other/of another rank"), b"x")
    uploads(storage).take("other", 1, {}, source=local(tmp_path / "x", m="model"))
    assert seal(storage, "r1", order(0, name="other", index=1)).size_bytes == 5


def test_many_files_go_up_side_by_side_and_a_missing_directory_is_named(storage: Storage, tmp_path: Path) -> None:
    names = {f"f{number}": str(number) for number in range(20)}
    uploads(storage, threads=4).copy(local(tmp_path / "x", **names), NAME, 0, {}, named=False)
    seal(storage, "r1", order(0, world_size=1))
    assert len(manifest(storage).files) == 20
    with pytest.raises(FileNotFoundError, match="gone"):
        uploads(storage).copy(Checkpoint(tmp_path / "gone"), NAME, 1, {}, named=False)


def test_a_checkpoint_of_another_filesystem_is_uploaded_too(storage: Storage, tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/elsewhere/m", b"model")
    uploads(storage).copy(Checkpoint("memory://elsewhere"), NAME, 0, {}, named=False)
    assert storage.files.read(storage.path(f"{NAME}/m")) == b"model"


def test_links_are_followed_when_files_go_up(storage: Storage, tmp_path: Path) -> None:
    checkpoint = local(tmp_path / "x", a="a")
    local(tmp_path / "elsewhere", weights="w", **{"deep/er": "d"})
    Path(checkpoint.path, "latest").symlink_to(tmp_path / "elsewhere")
    Path(checkpoint.path, "best").symlink_to(tmp_path / "elsewhere" / "weights")
    uploads(storage).copy(checkpoint, NAME, 0, {}, named=False)
    seal(storage, "r1", order(0, world_size=1))
    assert [file.path for file in manifest(storage).files] == ["a", "best", "latest/deep/er", "latest/weights"]


@pytest.mark.parametrize("what", ["pipe", "socket", "nowhere", "itself", "circle"])
def test_what_has_no_end_is_no_part_of_a_checkpoint(storage: Storage, tmp_path: Path, what: str) -> None:
    checkpoint = local(tmp_path / "x", a="a")
    odd = Path(checkpoint.path, "odd")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(tmp_path / "x"):
        match what:
            case "pipe":
                os.mkfifo(odd)
            case "socket":
                listening.bind("odd")
            case "circle":
                odd.symlink_to(tmp_path)
            case _:
                odd.symlink_to(odd if what == "itself" else tmp_path / "gone")
    with pytest.raises(UploadError, match="odd is"):
        uploads(storage).copy(checkpoint, NAME, 0, {}, named=False)
    assert storage.files.find(storage.path(NAME)) == {}


def test_what_others_put_into_a_storage_does_not_stop_a_run(tmp_path: Path) -> None:
    storage = open_storage(StorageSpec(url=str(tmp_path / "runs"), name="digits"))
    kept = Path(local(tmp_path / "elsewhere", weights="w").path)
    begun = Path(local(tmp_path / "runs" / "digits" / "checkpoint_000001_1", a="a").path)
    (begun / "gone").symlink_to(tmp_path / "gone")
    (begun / "circle").symlink_to(begun / "circle")
    os.mkfifo(begun / "pipe")
    (tmp_path / "runs" / "digits" / "checkpoint_000002_1").symlink_to(kept)
    assert look(storage, "r2", None).checkpoints == ()
    assert storage.files.folders(storage.root) == []
    assert (kept / "weights").read_text() == "w"


DAMAGES = (b"", b"{", b"\xff\xfe", b"null", b'{"cursors":' + b"[" * 10_000)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_seal_is_named_and_its_checkpoint_stays(storage: Storage, tmp_path: Path, damage: bytes) -> None:
    two_ranks(storage, tmp_path)
    seal(storage, "r1", order(0, 1))
    storage.files.write(storage.inner(NAME, MANIFEST), damage)
    for act in (lambda: look(storage, "r2", None), lambda: seal(storage, "r1", order(0, 1))):
        with pytest.raises(StorageError, match=rf"{NAME}/.runfold/{MANIFEST} is damaged"):
            act()
    assert storage.files.read(storage.path(f"{NAME}/a")) == b"a"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_named_and_no_seal(storage: Storage, tmp_path: Path, damage: bytes) -> None:
    two_ranks(storage, tmp_path)
    storage.files.write(storage.inner(NAME, "part-1.json"), damage)
    with pytest.raises(StorageError, match=r"part-1.json is damaged"):
        seal(storage, "r1", order(0, 1))
    assert not storage.files.exists(storage.inner(NAME, MANIFEST))


def test_of_two_runs_in_one_directory_the_first_seals_no_more(storage: Storage, tmp_path: Path) -> None:
    look(storage, "r1", None)
    two_ranks(storage, tmp_path)
    look(open_storage(storage.spec), "r2", None)
    two_ranks(storage, tmp_path)
    with pytest.raises(StorageError, match="run r2 writes there too"):
        seal(storage, "r1", order(0, 1))
    assert not storage.files.exists(storage.inner(NAME, MANIFEST))
