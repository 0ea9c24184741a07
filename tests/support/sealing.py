"""A storage to seal in: on local files and in memory, what ranks upload there, the order to seal it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import msgspec
import pytest

from runfold.events.checkpoints import with_rank
from runfold.events.config import CheckpointConfig
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.layout import MANIFEST, Manifest, StorageSpec
from runfold.workers.sealing import SealOrder
from runfold.workers.storage import Storage, open_storage
from runfold.workers.upload import Author, Uploads

if TYPE_CHECKING:
    from pathlib import Path

NAME = "checkpoint_000000_1"


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A storage in which nothing is yet."""
    memory = fsspec.filesystem("memory")
    if memory.exists("/runs"):
        memory.rm("/runs", recursive=True)
    url = str(tmp_path / "runs") if request.param == "local" else "memory://runs"
    return open_storage(StorageSpec(url=url, name="digits"))


def uploads(
    storage: Storage, rank: int = 0, attempt: int = 1, run: str = "r1", threads: int = 1, life: int = 1
) -> Uploads:
    """What a rank uploads with."""
    author = Author(run=run, attempt=attempt, rank=rank, life=life, node="local")
    return Uploads(storage, author, CheckpointConfig(upload_retries_max=0, upload_threads_max=threads))


def local(folder: Path, **texts: str) -> Checkpoint:
    """A checkpoint of these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Checkpoint.from_directory(folder)


def order(*ranks: int, name: str = NAME, attempt: int = 1, index: int = 0, world_size: int = 2) -> SealOrder:
    """The order to seal what these ranks uploaded."""
    held = ""
    for rank in ranks:
        held = with_rank(held, rank)
    return SealOrder(name=name, index=index, attempt=attempt, ranks=held, world_size=world_size)


def manifest(storage: Storage, name: str = NAME) -> Manifest:
    """What a seal says."""
    return msgspec.json.decode(storage.files.read(storage.inner(name, MANIFEST)), type=Manifest)


def two_ranks(storage: Storage, tmp_path: Path, name: str = NAME) -> None:
    """Two ranks upload, one file the same."""
    uploads(storage, 1).copy(local(tmp_path / "b", b="bb", shared="same"), name, 0, {"loss": 2}, named=False)
    uploads(storage, 0).copy(local(tmp_path / "a", a="a", shared="same"), name, 0, {"loss": 1}, named=False)
