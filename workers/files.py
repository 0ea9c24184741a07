"""Files of a run's storage: a directory of this machine, or any filesystem of fsspec, behind the same few calls.

fsspec has no types; they are given to it here, once. It is imported only for what is not a local directory.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeAlias, cast

from runfold.events.base import Json
from runfold.workers.errors import StorageError

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Files are copied in pieces of this size, unless a size is given."""
TEMPORARY: Final = ".runfold-tmp-"
"""How the name of a file begins that is being written: never listed."""
FILE_URL: Final = "file://"

_FINAL: Final = frozenset({errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR})

Copied = tuple[int, str]
"""What was copied: its size in bytes and its SHA-256 (hex)."""


class Files(Protocol):
    """Files by path. A missing one is `FileNotFoundError`; other trouble is one of `transient()`."""

    @property
    def local(self) -> bool:
        """Whether paths are paths of this machine."""
        ...

    @property
    def filesystem(self) -> _FileSystem:
        """The filesystem of fsspec."""
        ...

    def put(self, source: Path, path: str, chunk_bytes: int = CHUNK_BYTES) -> Copied:
        """Copy a local file there: a reader sees it whole, or what was there before. See `settle`."""
        ...

    def settle(self, path: str) -> None:
        """See to it that the names of the files below a folder outlive a failure of the machine."""
        ...

    def get(self, path: str, target: Path) -> Copied:
        """Copy a file from there into a local one."""
        ...

    def digest(self, path: str) -> Copied:
        """Read a file through, keeping nothing of it."""
        ...

    def read(self, path: str) -> bytes:
        """Return a small file's bytes."""
        ...

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a small file at once; `durable`: it outlives a failure of the machine."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        ...

    def find(self, path: str) -> dict[str, int]:
        """Return every file below a folder, by its path within it, with its size; nothing when there is no folder."""
        ...

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder."""
        ...

    def make(self, path: str) -> None:
        """Make a folder and those it is in; one that exists is fine."""
        ...

    def remove(self, path: str) -> None:
        """Remove a folder and all in it; a missing one is fine."""
        ...

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files; missing ones are fine."""
        ...

    def remove_unfinished(self, path: str) -> None:
        """Remove what was being written in a folder (not below it) by somebody who was killed."""
        ...


class _FileSystem(Protocol):
    """The part of fsspec's filesystems that is used."""

    def open(self, path: str, mode: str, block_size: int | None = None) -> AbstractContextManager[BinaryIO]: ...
    def cat_file(self, path: str) -> bytes: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def exists(self, path: str) -> bool: ...
    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, object]]: ...
    def ls(self, path: str, *, detail: bool) -> list[dict[str, object]]: ...
    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...
    def rm(self, path: str | list[str], *, recursive: bool = False) -> None: ...
    def invalidate_cache(self) -> None: ...


FileSystem: TypeAlias = _FileSystem


def transient() -> tuple[type[BaseException], ...]:
    """Return the errors after which a call may be tried again: `OSError` with timeouts, and what client libraries add.

    Only what is imported can be raised, so nothing is imported for it.
    """
    found: list[type[BaseException]] = [OSError]
    for module, name in (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError")):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            found.append(kind)
    return tuple(found)


def is_final(error: BaseException) -> bool:
    """Whether another try fails at the same: what is read-only stays so, what is no name does not become one."""
    return isinstance(error, OSError) and error.errno in _FINAL


def open_files(url: str, options: Mapping[str, Json] | None = None) -> tuple[Files, str]:
    """Return the files of a URL or a path, and the path on them. Raises `StorageError` for an unusable one."""
    if url.startswith(FILE_URL) or "://" not in url:
        return local_files(), str(Path(url.removeprefix(FILE_URL)).absolute())
    filesystem, path = open_url(url, options)
    return of_filesystem(filesystem), path


def open_url(url: str, options: Mapping[str, Json] | None = None) -> tuple[FileSystem, str]:
    """Return fsspec's filesystem of a URL and the path on it."""
    try:
        core = importlib.import_module("fsspec.core")
        url_to_fs = cast("Callable[..., tuple[FileSystem, str]]", core.url_to_fs)
        return url_to_fs(url.rstrip("/"), **(options or {}))
    except (ImportError, ValueError, TypeError) as error:
        raise StorageError(f"storage {url}: {error}. Nothing was read or written") from error


def of_filesystem(filesystem: FileSystem) -> Files:
    """Return the files of a filesystem of fsspec; a local one's without fsspec."""
    return local_files() if is_local(filesystem) else _RemoteFiles(filesystem)


def is_local(filesystem: object) -> bool:
    """Whether a filesystem of fsspec is this machine's own."""
    return type(filesystem).__name__ == "LocalFileSystem"


def local_files() -> Files:
    """Return the files of this machine."""
    return _LocalFiles()


def copy(source: BinaryIO, target: BinaryIO | None, chunk_bytes: int = CHUNK_BYTES) -> Copied:
    """Copy an open file into another, or only read it; return size and digest."""
    digest, size = hashlib.sha256(), 0
    while piece := source.read(chunk_bytes):
        digest.update(piece)
        size += len(piece)
        if target is not None:
            target.write(piece)
    return size, digest.hexdigest()


class _LocalFiles:
    """A directory of this machine: files appear whole, and what they hold is on the disk when a call returns."""

    local = True

    @property
    def filesystem(self) -> FileSystem:
        module = importlib.import_module("fsspec.implementations.local")
        return cast("Callable[[], FileSystem]", module.LocalFileSystem)()

    def put(self, source: Path, path: str, chunk_bytes: int = CHUNK_BYTES) -> Copied:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as reading:
            return self._replace(target, lambda writing: copy(reading, writing, chunk_bytes))

    def settle(self, path: str) -> None:
        for folder, _, _ in os.walk(path):
            _sync_folder(Path(folder))

    def get(self, path: str, target: Path) -> Copied:
        target.parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("rb") as reading, target.open("wb") as writing:
            return copy(reading, writing)

    def digest(self, path: str) -> Copied:
        with Path(path).open("rb") as reading:
            return copy(reading, None)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._replace(target, lambda writing: (writing.write(data), ""), durable=durable)
        if durable:
            _sync_folder(target.parent)

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def find(self, path: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder, _, names in os.walk(path):
            for name in names:
                file = Path(folder) / name
                if not name.startswith(TEMPORARY) and (size := size_of(file)) is not None:
                    found[file.relative_to(path).as_posix()] = size
        return found

    def folders(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(path) if Path(entry).is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def remove(self, path: str) -> None:
        if Path(path).is_symlink():
            Path(path).unlink(missing_ok=True)  # what it leads to is somebody else's
            return
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return

    def remove_files(self, paths: Iterable[str]) -> None:
        for path in paths:
            Path(path).unlink(missing_ok=True)

    def remove_unfinished(self, path: str) -> None:
        for file in Path(path).glob(f"{TEMPORARY}*"):
            file.unlink(missing_ok=True)

    def _replace(self, target: Path, fill: Callable[[BinaryIO], Copied], *, durable: bool = True) -> Copied:
        temporary = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as writing:
                copied = fill(writing)
                writing.flush()
                if durable:
                    os.fsync(writing.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return copied


class _RemoteFiles:
    """A filesystem of fsspec. A file is one upload: object stores show it whole or not at all."""

    local = False

    def __init__(self, filesystem: FileSystem) -> None:
        self.filesystem = filesystem

    def put(self, source: Path, path: str, chunk_bytes: int = CHUNK_BYTES) -> Copied:
        self._make_parent(path)
        with source.open("rb") as reading, self.filesystem.open(path, "wb", block_size=chunk_bytes) as writing:
            return copy(reading, writing, chunk_bytes)

    def get(self, path: str, target: Path) -> Copied:
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.filesystem.open(path, "rb") as reading, target.open("wb") as writing:
            return copy(reading, writing)

    def digest(self, path: str) -> Copied:
        with self.filesystem.open(path, "rb") as reading:
            return copy(reading, None)

    def read(self, path: str) -> bytes:
        return self.filesystem.cat_file(path)

    def settle(self, path: str) -> None:
        """An upload that is complete is safe already."""

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002  # it is anyway
        self._make_parent(path)
        self.filesystem.pipe_file(path, data)

    def exists(self, path: str) -> bool:
        self.filesystem.invalidate_cache()
        return self.filesystem.exists(path)

    def find(self, path: str) -> dict[str, int]:
        self.filesystem.invalidate_cache()
        try:
            found = self.filesystem.find(path, detail=True)
        except FileNotFoundError:
            return {}
        root = path.strip("/") + "/"
        sizes: dict[str, int] = {}
        for name, info in found.items():
            within = name.strip("/").removeprefix(root)
            size = info.get("size")
            sizes[within] = size if isinstance(size, int) else 0
        return sizes

    def folders(self, path: str) -> list[str]:
        self.filesystem.invalidate_cache()
        try:
            found = self.filesystem.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(
            str(info["name"]).rstrip("/").rpartition("/")[2] for info in found if info.get("type") == "directory"
        )

    def make(self, path: str) -> None:
        if not self._is_object_store():
            self.filesystem.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        self.filesystem.invalidate_cache()
        try:
            self.filesystem.rm(path, recursive=True)
        except FileNotFoundError:
            return

    def remove_files(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                self.filesystem.rm(path)
            except FileNotFoundError:
                continue

    def remove_unfinished(self, path: str) -> None:
        """Files are there whole or not at all."""

    def _make_parent(self, path: str) -> None:
        if not self._is_object_store():
            self.filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _is_object_store(self) -> bool:
        """Whether it knows no folders: then there is nothing to make but buckets, which are nobody's to make."""
        protocol = cast("str | Iterable[str]", getattr(self.filesystem, "protocol", ""))
        return bool(OBJECT_STORES & {protocol} if isinstance(protocol, str) else OBJECT_STORES.intersection(protocol))


OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "obs"})


def size_of(file: Path) -> int | None:
    """Return a file's size; None for a link that leads nowhere, and for what is no file, as a pipe: it has no end."""
    try:
        found = file.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _sync_folder(folder: Path) -> None:
    """See a rename on the disk, where the filesystem can say so."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
