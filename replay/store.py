"""Where archives and exports are kept: a directory of this machine, or any URL that fsspec knows.

fsspec has no types; they are given to it here, once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from runfold.events.nats.files import write_private_bytes
from runfold.replay.errors import CannotRead


class Store(Protocol):
    """Files by name, `/` between the parts. Missing ones are `FileNotFoundError`, other trouble is an `OSError`."""

    url: str

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replace a file at once: a reader sees the old bytes or the new, as far as the storage allows."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders in a folder, sorted; nothing when there is no such folder."""
        ...


class _FileSystem(Protocol):
    """The part of fsspec's file systems that is used."""

    def cat_file(self, path: str) -> bytes: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def makedirs(self, path: str, exist_ok: bool) -> None: ...
    def ls(self, path: str, detail: bool) -> list[str]: ...
    def invalidate_cache(self) -> None: ...


def is_url(target: str) -> bool:
    """Say whether a target is a URL rather than a path or a run id."""
    return "://" in target


def open_store(target: str | Path) -> Store:
    """Return the store of a directory or a URL; nothing is made or read yet."""
    text = str(target)
    if text.startswith("file://"):
        return LocalStore(Path(text.removeprefix("file://")))
    return UrlStore(text) if is_url(text) else LocalStore(Path(text))


class LocalStore:
    """A directory of this machine. Writes are atomic, on the disk before they return, and for its owner alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_bytes(path, data)
        _sync_folder(path.parent)

    def names(self, folder: str) -> list[str]:
        try:
            # A name with a dot first is a write that was cut short.
            return sorted(path.name for path in (self.root / folder).iterdir() if not path.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []


class UrlStore:
    """A URL by fsspec. One file is one put: whole or not at all on object stores, as the file system does elsewhere."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            core = importlib.import_module("fsspec.core")
            url_to_fs = cast("Callable[[str], tuple[_FileSystem, str]]", core.url_to_fs)
            self._files, self._root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise CannotRead(f"{url}: {error}. Nothing was read or written") from error

    def read(self, name: str) -> bytes:
        with _as_os_errors():
            return self._files.cat_file(f"{self._root}/{name}" if name else self._root)

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        with _as_os_errors():
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, data)

    def names(self, folder: str) -> list[str]:
        path = f"{self._root}/{folder}" if folder else self._root
        try:
            with _as_os_errors():
                self._files.invalidate_cache()
                found = [name.rstrip("/") for name in self._files.ls(path, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [] if found == [path] else sorted(name.rpartition("/")[2] for name in found)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Let what a filesystem's own client raises be an `OSError`, as everything else that a storage does is."""
    try:
        yield
    except _clients_errors() as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _clients_errors() -> tuple[type[Exception], ...]:
    """Return the errors of clients that are loaded by now; whose are not cannot have raised any."""
    found: list[type[Exception]] = []
    for module, name in (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError")):
        kind: object = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, OSError):
            found.append(kind)
    return tuple(found)


def _sync_folder(folder: Path) -> None:
    """See a rename on the disk, where the file system can say so."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
