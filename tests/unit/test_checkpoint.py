"""A checkpoint of any filesystem: copied, lent, described, and never taken for what it is not."""

from __future__ import annotations

import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import msgspec
import pytest

from runfold.workers.checkpoint import Checkpoint
from runfold.workers.errors import CheckpointDamagedError, StorageError
from runfold.workers.failure import describe
from runfold.workers.files import Copied, _LocalFiles
from runfold.workers.layout import Manifest, SealedFile


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Downloads of a test go where the test looks."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def saved(folder: Path, **texts: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def in_memory(name: str, **texts: str) -> Checkpoint:
    files = fsspec.filesystem("memory")
    for file, text in texts.items():
        files.pipe_file(f"/{name}/{file}", text.encode())
    return Checkpoint(f"/{name}", filesystem=files)


def sealed(checkpoint: Checkpoint, **texts: str) -> None:
    files = tuple(
        SealedFile(name, 0, len(text), hashlib.sha256(text.encode()).hexdigest()) for name, text in texts.items()
    )
    manifest = Manifest(run="r", name="c", index=0, attempt=1, world_size=1, files=files)
    checkpoint.files.write(f"{checkpoint.path}/.runfold/manifest.json", msgspec.json.encode(manifest))


def test_a_directory_here_is_lent_as_it_is(tmp_path: Path) -> None:
    folder = saved(tmp_path / "c", model="m")
    with Checkpoint.from_directory(folder).as_directory() as lent:
        assert lent == str(folder)
    assert (folder / "model").read_text() == "m"


def test_one_that_is_not_there_says_so(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="none"), checkpoint.as_directory():
        pass
    with pytest.raises(FileNotFoundError, match="none"):
        checkpoint.to_directory()


def test_it_is_copied_where_it_is_wanted(tmp_path: Path) -> None:
    saved(tmp_path / "c" / "deep", weights="w")
    saved(tmp_path / "c", model="m")
    copied = Path(Checkpoint(tmp_path / "c").to_directory(tmp_path / "copy"))
    assert copied == tmp_path / "copy"
    assert (copied / "model").read_text() == "m"
    assert (copied / "deep" / "weights").read_text() == "w"


def test_a_copy_where_it_is_wanted_leaves_nothing_else(temporary: Path, tmp_path: Path) -> None:
    in_memory("wanted", model="m").to_directory(tmp_path / "copy")
    assert list(temporary.iterdir()) == []


def test_many_users_at_once_get_one_copy_and_leave_nothing(temporary: Path) -> None:
    checkpoint = in_memory("many", model="m")

    def use(_: int) -> str:
        with checkpoint.as_directory() as folder:
            return Path(folder, "model").read_text()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(use, range(40))) == {"m"}
    assert list(temporary.iterdir()) == []


def test_a_far_one_is_downloaded_once_and_removed_by_its_last_user(temporary: Path) -> None:
    checkpoint = in_memory("far", model="m")
    with checkpoint.as_directory() as one:
        before = Path(one, "model").stat().st_mtime_ns
        with checkpoint.as_directory() as two:
            assert one == two
            assert Path(two, "model").stat().st_mtime_ns == before
        assert Path(one, "model").read_text() == "m"
    assert not Path(one).exists()
    assert list(temporary.iterdir()) == []


def test_what_a_dead_process_left_does_not_keep_a_download(temporary: Path) -> None:
    checkpoint = in_memory("left", model="m")
    with checkpoint.as_directory() as lent:
        Path(f"{lent}.user-4194305-x").touch()
    assert not Path(lent).exists()


def test_digests_are_checked_on_download() -> None:
    checkpoint = in_memory("sealed", model="weights", extra="not of the checkpoint")
    sealed(checkpoint, model="weights")
    copied = Path(checkpoint.to_directory())
    assert [file.name for file in copied.iterdir()] == ["model"]
    damaged = in_memory("sealed", model="WEIGHTS")
    with pytest.raises(CheckpointDamagedError, match="model is not what rank 0 uploaded"):
        damaged.to_directory()
    trusted = Checkpoint.at(damaged.path, damaged.files, verify=False)
    assert Path(trusted.to_directory(), "model").read_text() == "WEIGHTS"


def test_a_missing_file_and_a_broken_manifest_are_named() -> None:
    checkpoint = in_memory("broken")
    sealed(checkpoint, gone="x")
    with pytest.raises(CheckpointDamagedError, match="gone is missing"):
        checkpoint.to_directory()
    checkpoint.files.write(f"{checkpoint.path}/.runfold/manifest.json", b"{")
    with pytest.raises(CheckpointDamagedError, match="manifest"):
        checkpoint.to_directory()


def test_a_committed_one_that_is_lent_has_all_its_files_at_their_sizes(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(saved(tmp_path / "c", model="m", state="s"))
    sealed(checkpoint, model="m", state="s")
    with checkpoint.as_directory() as lent:
        Path(lent, "state").unlink()
    for text, why in ((None, "state is missing"), ("", "state has 0 bytes")):
        if text is not None:
            (tmp_path / "c" / "state").write_text(text)
        with pytest.raises(CheckpointDamagedError, match=why), checkpoint.as_directory():
            pass
    (tmp_path / "c" / "state").write_text("s")
    with checkpoint.as_directory() as lent:
        assert lent == checkpoint.path


def test_flipped_bytes_of_equal_size_are_found_before_a_directory_is_lent(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(saved(tmp_path / "c", model="weights"))
    sealed(checkpoint, model="weights")
    (tmp_path / "c" / "model").write_text("WEIGHTS")
    for _ in range(2):
        with (
            pytest.raises(CheckpointDamagedError, match="model is not what rank 0 uploaded: 7 bytes with SHA-256"),
            checkpoint.as_directory(),
        ):
            pass
    with Checkpoint.at(checkpoint.path, checkpoint.files, verify=False).as_directory() as lent:
        assert Path(lent, "model").read_text() == "WEIGHTS"


def test_a_directory_is_read_through_once_in_a_process_and_again_when_it_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runfold.workers.checkpoint.VERIFIED_MAX_COUNT", 1)
    checkpoint = Checkpoint.from_directory(saved(tmp_path / "c", model="weights"))
    other = Checkpoint.from_directory(saved(tmp_path / "other", model="m"))
    sealed(checkpoint, model="weights")
    sealed(other, model="m")
    read: list[str] = []
    digest = _LocalFiles.digest

    def noted(files: _LocalFiles, path: str) -> Copied:
        read.append(Path(path).parent.name)
        return digest(files, path)

    monkeypatch.setattr(_LocalFiles, "digest", noted)
    for one in (checkpoint, Checkpoint.from_directory(tmp_path / "c"), other, checkpoint, checkpoint):
        with one.as_directory():
            pass
    assert read == ["c", "other", "c"]  # of more than the limit the oldest is read again
    saved(tmp_path / "c", model="WEIGHTS")
    sealed(checkpoint, model="WEIGHTS")
    with checkpoint.as_directory():
        assert read == ["c", "other", "c", "c"]


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_committed_one_that_is_gone_is_the_storages_trouble_and_says_what_to_do(where: str, tmp_path: Path) -> None:
    made = Checkpoint.from_directory(tmp_path / "digits" / "c") if where == "local" else in_memory("digits/c")
    gone = Checkpoint.at(made.path, made.files, committed=True)
    with pytest.raises(
        CheckpointDamagedError, match=r"digits/c: .*was committed, and .*not there .*from a copy"
    ) as told:
        gone.to_directory()
    assert gone.path in str(told.value)
    assert describe(told.value)[0].kind == "storage"
    with pytest.raises(CheckpointDamagedError, match="was committed"), gone.as_directory():
        pass
    with pytest.raises(CheckpointDamagedError, match="was committed"):
        gone.committed_manifest()  # what data sets are gone on with from it is asked so
    made.files.write(f"{made.path}/model", b"m")
    with pytest.raises(CheckpointDamagedError, match=r"manifest\.json, its seal, is not there any more"):
        gone.to_directory()


LEADING_OUT = ("../outside", "a/../../outside", "{outside}", "", ".", "a//b", "a\0b")


@pytest.mark.parametrize("path", LEADING_OUT)
def test_a_manifest_that_leads_out_of_the_directory_touches_nothing_there(path: str, tmp_path: Path) -> None:
    outside = saved(tmp_path, outside="precious") / "outside"
    checkpoint = Checkpoint.from_directory(saved(tmp_path / "c", model="m"))
    sealed(checkpoint, model="m")
    manifest = tmp_path / "c" / ".runfold" / "manifest.json"
    entries = msgspec.json.decode(manifest.read_bytes())
    entries["files"][0]["path"] = path.format(outside=outside)
    manifest.write_bytes(msgspec.json.encode(entries))
    with pytest.raises(CheckpointDamagedError, match="no file within"):
        checkpoint.to_directory(tmp_path / "copy")
    assert outside.read_text() == "precious"


@pytest.mark.parametrize("where", ["local", "memory"])
def test_metadata_is_kept_beside_the_files(where: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(saved(tmp_path / "c")) if where == "local" else in_memory("meta", model="m")
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"epoch": 3, "best": float("inf")})
    checkpoint.update_metadata({"epoch": 4, "notes": ["a"]})
    assert checkpoint.get_metadata() == {"epoch": 4, "best": float("inf"), "notes": ["a"]}


def test_the_filesystem_is_found_by_the_url(tmp_path: Path) -> None:
    assert Checkpoint("memory://a/b").filesystem.__class__.__name__ == "MemoryFileSystem"
    local = Checkpoint(f"file://{tmp_path}")
    assert local.path == str(tmp_path)
    assert local.filesystem.__class__.__name__ == "LocalFileSystem"
    with pytest.raises(StorageError, match="nope"):
        Checkpoint("nope://a")


def test_equal_is_who_is_the_same() -> None:
    assert Checkpoint("/a") != Checkpoint("/a")


def test_it_can_be_pickled(tmp_path: Path) -> None:
    saved(tmp_path / "c", model="m")
    again = pickle.loads(pickle.dumps(Checkpoint(tmp_path / "c")))
    assert Path(again.to_directory(), "model").read_text() == "m"


def test_old_names_say_what_to_do() -> None:
    with pytest.raises(AttributeError, match="as_directory"):
        Checkpoint("/a").to_dict  # type: ignore[attr-defined]  # noqa: B018  # what the test is about
    with pytest.raises(AttributeError, match="no attribute 'x'"):
        Checkpoint("/a").x  # type: ignore[attr-defined]  # noqa: B018  # what the test is about
    assert "path=/a" in repr(Checkpoint("/a"))
