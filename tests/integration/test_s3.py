"""Storage on a real server of the S3 protocol: the same checkpoints, by the network."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from runfold.events.checkpoints import with_rank
from runfold.events.config import CheckpointConfig
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.errors import CheckpointClashError, StorageError
from runfold.workers.layout import StorageSpec
from runfold.workers.sealing import SealOrder, delete, look, seal
from runfold.workers.storage import Storage, open_storage
from runfold.workers.upload import Author, Uploads
from support.commands import Commands
from support.saving import SAVING
from support.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = ROOT / "tests" / "golden" / "golden-digits-retry.jsonl"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server with an empty bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    options = {"key": "test", "secret": "test", "endpoint_url": url}
    fsspec.filesystem("s3", **options).mkdir("bucket")
    yield url
    server.stop()


@pytest.fixture
def storage(endpoint: str, tmp_path: Path) -> Storage:
    """A run's directory in the bucket."""
    options = {"key": "test", "secret": "test", "endpoint_url": endpoint}
    return open_storage(StorageSpec(url="s3://bucket/runs", name=tmp_path.name, options=dict(options)))


def uploads(storage: Storage, rank: int) -> Uploads:
    author = Author(run="r1", attempt=1, rank=rank, life=1, node="local")
    return Uploads(storage, author, CheckpointConfig())


def saved(folder: Path, name: str, size: int) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"w" * size)
    return Checkpoint.from_directory(folder)


def test_a_checkpoint_is_uploaded_sealed_downloaded_and_deleted(storage: Storage, tmp_path: Path) -> None:
    assert storage.mark("r1") is None
    storage.check_visible("local")
    for rank, size in ((0, 10), (1, 12_000_000)):
        uploads(storage, rank).copy(saved(tmp_path / f"r{rank}", f"state-{rank}", size), "epoch/1", 0, {"loss": 1})
    order = SealOrder(name="epoch/1", index=0, attempt=1, ranks=with_rank(with_rank("", 0), 1), world_size=2)
    sealed = seal(storage, "r1", order)
    assert sealed == seal(storage, "r1", order)
    assert sealed.size_bytes == 12_000_010
    with storage.checkpoint("epoch/1").as_directory() as folder:
        digest = hashlib.sha256(Path(folder, "state-1").read_bytes()).hexdigest()
    assert digest == hashlib.sha256(b"w" * 12_000_000).hexdigest()
    with pytest.raises(CheckpointClashError):
        uploads(storage, 0).copy(saved(tmp_path / "again", "state-0", 1), "epoch/1", 1, {})
    assert [one.name for one in look(storage, "r2", "loss").checkpoints] == ["epoch/1"]
    delete(storage, ["epoch/1"], sealed=True)
    assert not storage.files.find(storage.path("epoch/1"))


def test_what_was_never_sealed_is_removed_and_a_missing_bucket_is_said(
    storage: Storage, endpoint: str, tmp_path: Path
) -> None:
    uploads(storage, 0).copy(saved(tmp_path / "r0", "state-0", 10), "checkpoint_000000_1", 0, {}, named=False)
    assert look(storage, "r2", None).checkpoints == ()
    assert not storage.files.find(storage.path("checkpoint_000000_1"))
    options = {"key": "test", "secret": "test", "endpoint_url": endpoint}
    nowhere = open_storage(StorageSpec(url="s3://nobucket/runs", name="x", options=dict(options)))
    with pytest.raises((OSError, StorageError)):
        look(nowhere, "r1", None)


def test_metadata_is_kept_there_too(storage: Storage) -> None:
    checkpoint = storage.checkpoint("c")
    checkpoint.set_metadata({"epoch": 1})
    checkpoint.update_metadata({"best": True})
    assert checkpoint.get_metadata() == {"epoch": 1, "best": True}


def test_a_run_fails_goes_on_and_is_resumed_from_there(endpoint: str, runfold: Commands) -> None:
    runfold.write("saving.py", SAVING)
    settings = ["storage_path=s3://bucket/runs", f"storage_options={json.dumps({'endpoint_url': endpoint})}"]
    settings += [f"env.{name}={value}" for name, value in KEYS.items()]
    settings += ["failure.max_failures=1", "config.fail_at=1", "config.steps=3", "checkpoint.num_to_keep=2"]
    options = [word for setting in settings for word in ("--set", setting)]
    done = runfold.ok("run", "saving.py:trains", "--workers", "2", "--name", "digits", "-o", "json", *options).document
    assert (done["state"], done["attempt"], done["checkpoint"]) == ("finished", 2, "checkpoint_000002_2")
    again = runfold.ok("resume", str(done["run"]), "--set", "config.steps=4", "-o", "json").document
    assert (again["state"], again["return_value"]) == ("finished", 3)
    files = fsspec.filesystem("s3", key="test", secret="test", endpoint_url=endpoint)
    files.invalidate_cache()
    kept = {path.split("/")[3] for path in files.find("bucket/runs/digits") if "/checkpoint_" in path}
    assert kept == {"checkpoint_000002_2", "checkpoint_000003_1"}


@pytest.mark.parametrize(
    "question",
    [("replay",), ("replay", "--at", "7"), ("verify", "--strict"), ("audit",), ("goodput",), ("export",)],
    ids=" ".join,
)
def test_an_archive_in_a_bucket_answers_as_the_file_does(
    endpoint: str, runfold: Commands, question: tuple[str, ...]
) -> None:
    there = {"AWS_ENDPOINT_URL": endpoint, **KEYS}
    url = "s3://bucket/archives/golden-digits-retry"
    runfold.ok("archive", str(RECORDED), url, **there)
    assert runfold.ok(question[0], url, *question[1:], **there).out == runfold.ok(*question, str(RECORDED)).out


def test_a_bucket_that_does_not_answer_is_told_in_a_line(runfold: Commands) -> None:
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1", **KEYS}
    done = runfold("replay", "s3://bucket/archives/golden-digits-retry", **nowhere)
    assert done.code != 0
    assert "s3://bucket/archives/golden-digits-retry" in done.err
    assert "Traceback" not in done.err
