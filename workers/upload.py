"""One rank's part of a checkpoint: its files copied into the report's directory, the part file last.

Nothing here makes a checkpoint count: that is the seal, once every rank has passed the report.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from runfold.events.base import Json
from runfold.events.config import CheckpointConfig
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.errors import CheckpointClashError, StorageError, UploadError
from runfold.workers.files import copy, size_of, transient
from runfold.workers.layout import MANIFEST, Part, PartFile, is_inner, lives_in, part_name
from runfold.workers.processes import tell
from runfold.workers.retry import Retries, retried
from runfold.workers.storage import Storage

T = TypeVar("T")


class Author(msgspec.Struct, frozen=True, kw_only=True):
    """Who uploads: its part file says so."""

    run: str
    attempt: int
    rank: int
    life: int
    node: str


class Uploads:
    """Uploads a rank's files. Every call may raise `StorageError`, `CheckpointClashError` or one of `transient()`."""

    def __init__(self, storage: Storage, author: Author, config: CheckpointConfig) -> None:
        self.storage = storage
        self._author = author
        self._config = config
        self._retries = Retries(retries_max=config.upload_retries_max)
        self._visible = False

    def copy(
        self, checkpoint: Checkpoint, name: str, index: int, metrics: dict[str, Json], *, named: bool = True
    ) -> None:
        """Copy the files of a checkpoint into the directory `name`."""
        self._check_visible()
        if named:
            self._check_free(name)
        if checkpoint.files.local:
            self._copy_from(Path(checkpoint.path), name, index, metrics)
            return
        with checkpoint.as_directory() as folder:
            self._copy_from(Path(folder), name, index, metrics)

    def take(self, name: str, index: int, metrics: dict[str, Json], *, source: Checkpoint | None = None) -> None:
        """Take the files of a directory as they are: somebody else has put them there, out of `source` perhaps."""
        self._check_visible()
        self._check_free(name)
        path = self.storage.path(name)
        sizes = self._tried(lambda: self.storage.files.find(path), name, "looking into")
        found = {file: size for file, size in sizes.items() if not is_inner(file)}
        here = Path(source.path) if source is not None and source.files.local else None
        own = {file: size for file, size in found.items() if here is not None and (here / file).is_file()}
        files = [self._taken(path, file, size, here) for file, size in sorted((own or found).items())]
        self._write_part(name, index, metrics, files)

    def _tried(self, call: Callable[[], T], what: str, doing: str = "uploading") -> T:
        """Return what `call` returns, tried again as often as is allowed; what fails says of which file, and where.

        Raises:
            UploadError: it failed for good. A missing file and an unusable storage stay the errors that they are.
        """
        try:
            return retried(call, self._retries, f"{doing} {what}")
        except (FileNotFoundError, StorageError):
            raise
        except transient() as error:
            why = f"{type(error).__name__}: {error}"
            raise UploadError(f"{why} ({doing} {what})\nStorage: {self.storage.url}") from error

    def _taken(self, path: str, file: str, size: int, here: Path | None) -> PartFile:
        local = here / file if here is not None else None
        if local is not None and local.is_file() and local.stat().st_size == size:
            # What was uploaded unchanged need not be read back.
            with local.open("rb") as reading:
                return PartFile(file, *copy(reading, None))
        there = posixpath.join(path, file)
        size, digest = self._tried(lambda: self.storage.files.digest(there), self._within(there), "reading")
        return PartFile(file, size, digest)

    def _copy_from(self, folder: Path, name: str, index: int, metrics: dict[str, Json]) -> None:
        path = self.storage.path(name)
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no directory {folder} to upload")
        sources = sorted(_files_of(folder))
        chunk_bytes = self._config.upload_chunk_bytes

        def put(file: str) -> PartFile:
            there = posixpath.join(path, file)
            put_there = partial(self.storage.files.put, folder / file, there, chunk_bytes)
            size, digest = self._tried(put_there, self._within(there))
            return PartFile(file, size, digest)

        threads = min(self._config.upload_threads_max, len(sources))
        if threads > 1:
            with ThreadPoolExecutor(threads, thread_name_prefix="runfold-upload") as pool:
                files = list(pool.map(put, sources))
        else:
            files = [put(file) for file in sources]
        self.storage.files.settle(path)
        self._write_part(name, index, metrics, files)

    def _write_part(self, name: str, index: int, metrics: dict[str, Json], files: list[PartFile]) -> None:
        who = self._author
        part = Part(
            run=who.run,
            attempt=who.attempt,
            life=who.life,
            rank=who.rank,
            index=index,
            files=tuple(files),
            metrics=metrics,
        )
        path, data = self.storage.inner(name, part_name(who.rank, who.life)), msgspec.json.encode(part)
        # Read by the seal alone, which is what outlives a failure of the machine.
        self._tried(lambda: self.storage.files.write(path, data, durable=False), self._within(path))

    def _within(self, path: str) -> str:
        return posixpath.relpath(path, self.storage.root)

    def _check_visible(self) -> None:
        if not self._visible:
            self._tried(lambda: self.storage.check_visible(self._author.node), "the marker", "looking for")
            self._visible = True

    def _check_free(self, name: str) -> None:
        """Raise `CheckpointClashError` when a directory is a sealed checkpoint, or this rank's of this attempt.

        `StorageError` when a later attempt has begun it: this rank is one of those that do not know that they are over.
        """
        files, who = self.storage.files, self._author
        if self._tried(lambda: files.exists(self.storage.inner(name, MANIFEST)), name, "looking into"):
            raise CheckpointClashError(
                f"checkpoint_dir_name: {name!r} is a committed checkpoint of this run; choose another name"
            )
        inner = self.storage.inner(name, "")
        for life in lives_in(self._tried(lambda: files.find(inner), name, "looking into"), who.rank):
            if (part := self._part(self.storage.inner(name, part_name(who.rank, life)))) is not None:
                self._check_older(name, part)

    def _part(self, path: str) -> Part | None:
        """Return what a part file says; None for one that is gone meanwhile, or says nothing."""

        def read() -> bytes:
            try:
                return self.storage.files.read(path)
            except FileNotFoundError:
                return b""  # no trouble that passes

        try:
            return msgspec.json.decode(self._tried(read, self._within(path), "reading"), type=Part)
        except msgspec.DecodeError:
            return None

    def _check_older(self, name: str, part: Part) -> None:
        who = self._author
        if part.run == who.run and (part.attempt, part.life) > (who.attempt, who.life):
            raise StorageError(
                f"{name} is being written by attempt {part.attempt} of this run (life {part.life} of rank {who.rank}): "
                f"attempt {who.attempt} is over, and touches nothing of it"
            )
        if (part.run, part.attempt, part.life) == (who.run, who.attempt, who.life):
            raise CheckpointClashError(
                f"checkpoint_dir_name: {name!r} was reported by this rank before (report {part.index}); choose another"
            )


def discard(checkpoint: Checkpoint) -> None:
    """Delete the local directory of a checkpoint that was uploaded; trouble with it is only said."""
    if not checkpoint.files.local:
        return
    try:
        shutil.rmtree(checkpoint.path)
    except OSError as error:
        tell(f"runfold: {checkpoint.path} was uploaded and could not be deleted here: {error}")


def holds(checkpoint: Checkpoint, storage: Storage) -> bool:
    """Whether the storage lies in a checkpoint's own directory: then that must not be deleted."""
    if not (checkpoint.files.local and storage.files.local):
        return False
    return Path(storage.root).resolve().is_relative_to(Path(checkpoint.path).resolve())


def _files_of(folder: Path) -> list[str]:
    """Return every file below a folder by its path within it; links are followed, as a reader of the folder would.

    Raises:
        UploadError: something in it cannot be copied: a link that leads nowhere or in a circle, a pipe, a socket.
    """
    found: list[str] = []
    for where, folders, names in os.walk(folder, followlinks=True):
        for name in folders:
            inner = Path(where, name)
            if inner.is_symlink() and Path(where).resolve().is_relative_to(inner.resolve()):
                raise UploadError(f"{inner} is a link to a directory that it is in itself; a checkpoint has an end")
        for name in names:
            file = Path(where, name)
            if size_of(file) is None:
                what = "a link that leads nowhere" if file.is_symlink() else "neither a file nor a directory"
                raise UploadError(f"{file} is {what}; leave it out of the checkpoint. Nothing of it was uploaded")
            found.append(file.relative_to(folder).as_posix())
    return [file for file in found if not is_inner(file)]
