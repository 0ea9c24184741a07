"""A run's storage: the directory where its checkpoints are, on any filesystem that fsspec knows.

```text
<storage_path>/<name>/
    .runfold-marker.json                  which run writes here; ranks look for it before they upload
    checkpoint_<index>_<attempt>/         all ranks' files, as they named them
        .runfold/part-<rank>.json         what a rank uploaded: written last, gone once sealed
        .runfold/part-<rank>.<life>.json  what a later life of it uploaded in the same attempt
        .runfold/manifest.json            the seal: every file's rank, size and digest
        .runfold/doubt.json               says that the ranks' files may not belong together
```
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Final, cast

import msgspec

from runfold.workers.checkpoint import Checkpoint
from runfold.workers.errors import CheckpointNameError, RunfoldError, StorageError
from runfold.workers.files import Files, FileSystem, is_final, of_filesystem, open_files, transient
from runfold.workers.layout import INNER, MARKER, Marker, StorageSpec
from runfold.workers.payload import unpickled

_UNUSABLE: Final = (FileNotFoundError, PermissionError, NotADirectoryError, FileExistsError)
"""What another try does not mend: where the storage should be there can be none."""

NAME_MAX_COUNT: Final = 255
"""Longest part of a checkpoint's name between two `/`, in characters."""


class Storage:
    """One run's directory. Names are those of checkpoints: paths within it."""

    def __init__(self, spec: StorageSpec, files: Files, root: str) -> None:
        self.spec = spec
        self.files = files
        self.root = root

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return self.spec.shown

    def path(self, name: str) -> str:
        """Return the path of a checkpoint's directory."""
        return posixpath.join(self.root, name)

    def inner(self, name: str, file: str) -> str:
        """Return the path of a file of runfold's own in a checkpoint's directory."""
        return posixpath.join(self.root, name, INNER, file)

    def checkpoint(self, name: str, *, verify: bool = True, committed: bool = False) -> Checkpoint:
        """Return the checkpoint of a directory; `committed`: the log says that it is there."""
        return Checkpoint.at(self.path(name), self.files, verify=verify, committed=committed)

    def name_of(self, checkpoint: Checkpoint) -> str | None:
        """Return the name of a checkpoint that lies in this directory; None for one that does not."""
        if checkpoint.files.local != self.files.local:
            return None
        if not self.files.local and checkpoint.filesystem != self.files.filesystem:
            return None
        path = checkpoint.path.rstrip("/")
        if self.files.local:
            path, root = str(Path(path).resolve()), str(Path(self.root).resolve())
        else:
            path, root = posixpath.normpath(path.strip("/")), posixpath.normpath(self.root.strip("/"))
        within = posixpath.relpath(path, root)
        return None if within.startswith("..") or within == "." else within

    def mark(self, run: str) -> Marker | None:
        """Say that `run` writes here, see that it can be read back, and return who said so before.

        Raises:
            StorageError: it cannot be written, or what was written is not there.
        """
        path = posixpath.join(self.root, MARKER)
        try:
            before = self._read_marker()
            self.files.make(self.root)
            self.files.write(path, msgspec.json.encode(Marker(run=run)))
        except OSError as error:
            if not isinstance(error, _UNUSABLE) and not is_final(error):
                raise
            raise StorageError(
                f"storage {self.url}: {error.filename or self.root} cannot be written: {error.strerror or error}. "
                "Nothing was kept there; name a directory by storage_path that every node may write to"
            ) from error
        found = self._read_marker()
        if found is None or found.run != run:
            raise StorageError(
                f"storage {self.url}: what was written there cannot be read back"
                if found is None
                else f"storage {self.url}: run {found.run} writes there too; stop it, or choose another name"
            )
        return before

    def check_own(self, run: str) -> None:
        """Raise `StorageError` when another run has said since that it writes here."""
        found = self._read_marker()
        if found is not None and found.run != run:
            raise StorageError(
                f"storage {self.url}: run {found.run} writes there too, under this name of the directory or another; "
                "stop one of the two, or choose another name"
            )

    def check_visible(self, node: str) -> None:
        """Raise `StorageError` when the marker of this run cannot be seen from here."""
        if self.spec.checked and not self.files.exists(posixpath.join(self.root, MARKER)):
            raise StorageError(
                f"storage {self.url} is not the same on all nodes: {MARKER}, written when the run began, cannot be "
                f"seen on {node}. Choose a storage_path that every node reaches under the same name: an object store "
                "(s3://…, gs://…) or a shared filesystem (NFS)"
            )

    def _read_marker(self) -> Marker | None:
        try:
            return msgspec.json.decode(self.files.read(posixpath.join(self.root, MARKER)), type=Marker)
        except (FileNotFoundError, msgspec.DecodeError, RecursionError):
            return None


def open_storage(spec: StorageSpec) -> Storage:
    """Return the storage of a spec; nothing is read or written yet. Raises `StorageError` for an unusable one."""
    if spec.filesystem is not None:
        files, path = of_filesystem(cast("FileSystem", unpickled(spec.filesystem))), spec.url
    else:
        files, path = open_files(spec.url, spec.options)
    return Storage(spec, files, posixpath.join(path, spec.name))


def as_storage_error(error: BaseException, spec: StorageSpec) -> BaseException:
    """Return what a storage failed at for good as an error that names it; our own errors, and bugs, as they are."""
    if isinstance(error, RunfoldError) or not isinstance(error, transient()):
        return error
    if not isinstance(error, OSError) or not error.strerror:
        return StorageError(f"storage {spec.shown}: {type(error).__name__}: {error}")
    where = f"{error.filename}: " if error.filename is not None else ""
    return StorageError(f"storage {spec.shown}: {where}{error.strerror}")


def check_name(name: str) -> None:
    """Raise `CheckpointNameError` for what is no name of a checkpoint's directory."""
    parts = name.split("/")
    wrong = any(not part or part in (".", "..", INNER) or len(part) > NAME_MAX_COUNT for part in parts)
    if wrong or any(ord(c) < 32 or c == "\\" for c in name):
        raise CheckpointNameError(
            f"checkpoint_dir_name: {name!r} names no directory within the run's storage; use letters, digits, '-', "
            "'_', '.', and '/' between parts"
        )


def default_name(index: int, attempt: int) -> str:
    """Return the name that a checkpoint gets when the user names none."""
    return f"checkpoint_{index:06d}_{attempt}"
