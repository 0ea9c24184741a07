"""A checkpoint: a directory of files, here or in a run's storage."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import posixpath
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, cast

import msgspec
import psutil

from runfold.events.base import Json
from runfold.events.values import pack, unpack
from runfold.workers.errors import CheckpointDamagedError
from runfold.workers.files import Copied, Files, FileSystem, local_files, of_filesystem, open_files
from runfold.workers.layout import INNER, MANIFEST, METADATA, Manifest, SealedFile, is_within
from runfold.workers.waits import waiting

_OLD_NAMES: Final = {
    "from_dict": "write the dict to a file in a directory and use Checkpoint.from_directory(directory)",
    "to_dict": "read the files of `with checkpoint.as_directory() as directory:`",
    "from_bytes": "write the bytes to a file in a directory and use Checkpoint.from_directory(directory)",
    "to_bytes": "read the files of `with checkpoint.as_directory() as directory:`",
    "from_uri": "use Checkpoint(uri)",
    "to_uri": "upload the files of `with checkpoint.as_directory() as directory:`",
    "uri": "use checkpoint.path and checkpoint.filesystem",
    "get_preprocessor": "keep what you need in the checkpoint's files or its metadata",
}
_COMPLETE: Final = b"complete"
VERIFIED_MAX_COUNT: Final = 64
"""Local directories that a process remembers to have read through, with their manifests."""


class Checkpoint:
    """A directory of files at `path`, on `filesystem` (one of fsspec; found by the URL when it is not given).

    Two checkpoints are equal when they are the same object.
    """

    def __init__(self, path: str | PathLike[str], filesystem: object | None = None) -> None:
        self.uuid = uuid.uuid4().hex
        self.verify = True
        self.committed = False
        self.files: Files
        self.path: str
        if filesystem is None:
            self.files, self.path = open_files(os.fspath(path))
        else:
            self.files, self.path = of_filesystem(cast("FileSystem", filesystem)), os.fspath(path)

    @classmethod
    def at(cls, path: str, files: Files, *, verify: bool = True, committed: bool = False) -> Checkpoint:
        """Return the checkpoint at a path of opened files.

        `verify`: digests are checked when it is downloaded or lent. `committed`: a log says that it is there, so that
        it is not is damage of the storage, and no mistake of who asks for it.
        """
        made = cls.__new__(cls)
        made.path, made.files, made.verify, made.committed = path, files, verify, committed
        made.uuid = uuid.uuid4().hex
        return made

    @classmethod
    def from_directory(cls, path: str | PathLike[str]) -> Checkpoint:
        """Return the checkpoint of a directory of this machine; nothing is copied."""
        return cls.at(str(Path(path).absolute()), local_files())

    @property
    def filesystem(self) -> FileSystem:
        """The filesystem of fsspec that `path` is on."""
        return self.files.filesystem

    def to_directory(self, path: str | PathLike[str] | None = None) -> str:
        """Copy the files into a directory of this machine and return it; a new temporary one when none is given.

        Each process of this machine that asks for the same temporary directory gets the one copy. The files of a
        committed checkpoint are compared with their digests.

        Raises:
            CheckpointDamagedError: a file is missing or is not what was uploaded, or all of a committed one is gone.
            FileNotFoundError: there is no such checkpoint, and no run has committed it.
        """
        target = self._temporary() if path is None else Path(path).absolute()
        with _locked(target, self.uuid) as state:
            if path is not None or state.read_text("utf-8") != _COMPLETE.decode() or not target.is_dir():
                with waiting("checkpoint_restore"):
                    self._download(target)
                # A directory of the caller's own may be changed by them: it is written anew each time.
                state.write_bytes(_COMPLETE if path is None else b"")
        return str(target)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give a directory of this machine that holds the files for as long as the block lasts.

        Of a local checkpoint it is the directory itself: do not change it. Of a committed one the files are compared
        with their digests, read through once in a process, and with their sizes each time. Others are downloaded
        once, and removed when the last process of this machine that uses them is done.

        Raises:
            CheckpointDamagedError: a file is missing or is not what was uploaded, or all of a committed one is gone.
            FileNotFoundError: there is no such checkpoint, and no run has committed it.
        """
        if self.files.local:
            self._check_whole()
            yield self.path
            return
        target = self._temporary()
        user = Path(f"{target}.user-{os.getpid()}-{uuid.uuid4().hex}")
        with _locked(target, self.uuid):
            user.touch()
        try:
            yield self.to_directory()
        finally:
            with _locked(target, self.uuid) as state:
                user.unlink(missing_ok=True)
                if not _used(target):
                    shutil.rmtree(target, ignore_errors=True)
                    state.write_bytes(b"")

    def manifest(self) -> Manifest | None:
        """Return the seal of a run's checkpoint; None for a directory without one.

        Raises:
            CheckpointDamagedError: it cannot be read, or it is gone though the checkpoint was committed.
        """
        if self.committed:
            return self.committed_manifest()
        try:
            return self._read_manifest()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def committed_manifest(self) -> Manifest:
        """Return the seal of a checkpoint that a run has committed.

        Raises:
            CheckpointDamagedError: it cannot be read, or it is gone.
        """
        try:
            return self._read_manifest()
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointDamagedError(self._gone()) from None

    def _read_manifest(self) -> Manifest:
        data = self.files.read(posixpath.join(self.path, INNER, MANIFEST))
        try:
            return msgspec.json.decode(data, type=Manifest)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CheckpointDamagedError(f"{self.path}: its manifest cannot be read: {error}") from None

    def get_metadata(self) -> dict[str, Json]:
        """Return the checkpoint's metadata; nothing when none was set."""
        try:
            found: object = msgspec.json.decode(self.files.read(posixpath.join(self.path, METADATA)))
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, RecursionError) as error:
            raise CheckpointDamagedError(f"{self._named}: its metadata cannot be read: {error}") from None
        unpacked = unpack(cast("Json", found))
        return unpacked if isinstance(unpacked, dict) else {}

    def set_metadata(self, metadata: Mapping[str, object]) -> None:
        """Replace the checkpoint's metadata: what a report's metrics may hold."""
        data = msgspec.json.encode(pack(dict(metadata), "metadata"))
        self.files.write(posixpath.join(self.path, METADATA), data)

    def update_metadata(self, metadata: Mapping[str, object]) -> None:
        """Change the metadata under these keys and leave the others."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def __repr__(self) -> str:
        where = "local" if self.files.local else type(self.filesystem).__name__
        return f"Checkpoint(filesystem={where}, path={self.path})"

    if not TYPE_CHECKING:  # a checker should find what is not there

        def __getattr__(self, name: str) -> NoReturn:
            instead = f": {_OLD_NAMES[name]}" if name in _OLD_NAMES else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead}")

    # --- downloading

    def _temporary(self) -> Path:
        return Path(tempfile.gettempdir()) / f"runfold-checkpoint-{self.uuid}"

    def _download(self, target: Path) -> None:
        manifest = self.manifest()
        target.mkdir(parents=True, exist_ok=True)
        if manifest is None:
            self._download_all(target)
            return
        for file in manifest.files:
            there, here = posixpath.join(self.path, file.path), target / file.path
            try:
                got = self.files.get(there, here)
            except FileNotFoundError:
                raise CheckpointDamagedError(f"{self._named}: {file.path} is missing; its manifest names it") from None
            if self.verify and file.path != METADATA and got != (file.size, file.sha256):
                here.unlink(missing_ok=True)
                raise self._changed(file, got)

    def _check_whole(self) -> None:
        """See that the files are those that the manifest names: by size each time, by digest once in a process."""
        manifest = self.manifest()
        if manifest is None and not self.files.exists(self.path):
            raise FileNotFoundError(f"there is no checkpoint {self.path}")
        if manifest is None or not self.verify:
            return
        found = self.files.find(self.path)
        files = [file for file in manifest.files if file.path != METADATA]
        for file in files:
            size = found.get(file.path)
            if size != file.size:
                has = "is missing" if size is None else f"has {size} bytes"
                raise CheckpointDamagedError(
                    f"{self._named}: {file.path} {has}, the manifest says {file.size} bytes of rank {file.rank}"
                )
        if _verified.get(self.path) != manifest:
            with waiting("checkpoint_restore"):
                self._check_digests(files)
            _remember(self.path, manifest)

    def _check_digests(self, files: list[SealedFile]) -> None:
        for file in files:
            try:
                got = self.files.digest(posixpath.join(self.path, file.path))
            except FileNotFoundError:
                raise CheckpointDamagedError(f"{self._named}: {file.path} is missing; its manifest names it") from None
            if got != (file.size, file.sha256):
                raise self._changed(file, got)

    def _changed(self, file: SealedFile, got: Copied) -> CheckpointDamagedError:
        return CheckpointDamagedError(
            f"{self._named}: {file.path} is not what rank {file.rank} uploaded: {got[0]} bytes with SHA-256 "
            f"{got[1][:12]}…, the manifest says {file.size} and {file.sha256[:12]}…"
        )

    @property
    def _named(self) -> str:
        """The run's storage and the checkpoint, as logs name them: where the storage stands differs by machine."""
        return "/".join(self.path.rstrip("/").split("/")[-2:])

    def _download_all(self, target: Path) -> None:
        found = [name for name in self.files.find(self.path) if not name.startswith(f"{INNER}/")]
        if not found and not self.files.exists(self.path):
            raise FileNotFoundError(f"there is no checkpoint {self.path}")
        for name in found:
            if not is_within(name):
                # An object store takes any key: nothing is written beside the directory that was asked for.
                raise CheckpointDamagedError(f"{self._named}: {name!r} is no file within it")
            self.files.get(posixpath.join(self.path, name), target / name)

    def _gone(self) -> str:
        is_there = self.files.exists(self.path)
        what = f"{posixpath.join(self.path, INNER, MANIFEST)}, its seal, is" if is_there else f"{self.path} is"
        return (
            f"{self._named}: this checkpoint was committed, and {what} not there any more. Runfold deletes none "
            "that is begun from: bring it back from a copy, or submit the run again with its name and storage_path: "
            "it begins from the newest that is left"
        )


_verified: Final[dict[str, Manifest]] = {}


def _remember(path: str, manifest: Manifest) -> None:
    """Note that a directory has been read through in this process; of many the oldest is forgotten, and read again."""
    _verified.pop(path, None)
    _verified[path] = manifest
    for oldest in list(_verified)[:-VERIFIED_MAX_COUNT]:
        _verified.pop(oldest, None)


@contextlib.contextmanager
def _locked(target: Path, name: str) -> Iterator[Path]:
    """Hold the lock of a download directory on this machine; give the file that says whether it is complete.

    One that says nothing at the end is removed.
    """
    digest = hashlib.sha256(str(target).encode()).hexdigest()[:16]
    state = Path(tempfile.gettempdir()) / f"runfold-checkpoint-{name}-{digest}.lock"
    while True:
        with state.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(file.fileno(), state):
                continue  # who held it before has removed it
            try:
                yield state
            finally:
                if not state.stat().st_size:
                    state.unlink()
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _used(target: Path) -> bool:
    """Whether a living process still uses a download directory; what dead ones left is removed."""
    used = False
    for user in target.parent.glob(f"{target.name}.user-*"):
        pid = int(user.name.rpartition(".user-")[2].partition("-")[0])
        if psutil.pid_exists(pid):
            used = True
        else:
            user.unlink(missing_ok=True)
    return used
