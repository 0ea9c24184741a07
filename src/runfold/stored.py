"""The result of a run from its storage alone: the log that was kept there, or else what its sealed checkpoints say."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from runfold.events.values import unpack
from runfold.folding import state_of
from runfold.keepsake import kept, kept_blob
from runfold.result import Result, result_of
from runfold.workers.files import of_filesystem, open_files
from runfold.workers.layout import MANIFEST, Manifest, StorageSpec
from runfold.workers.sealing import directories
from runfold.workers.storage import Storage

if TYPE_CHECKING:
    from os import PathLike

    from runfold.events.base import Json
    from runfold.workers.files import FileSystem


def result_at(path: str | PathLike[str], filesystem: object | None, options: dict[str, Json] | None) -> Result:
    """Return what `Result.from_path` does."""
    storage = _opened(path, filesystem, options)
    if not storage.files.exists(storage.root):
        raise RuntimeError(f"there is no directory {storage.url}")
    history = kept(storage)
    if history is not None:
        state = state_of(history)
        blob = None if state.return_blob is None else kept_blob(storage, state.return_blob)
        return result_of(state, blob=blob, storage=storage, history=lambda: history)
    return _from_seals(storage)


def _opened(path: str | PathLike[str], filesystem: object | None, options: dict[str, Json] | None) -> Storage:
    text = os.fspath(path).rstrip("/")
    if filesystem is not None:
        files, root = of_filesystem(cast("FileSystem", filesystem)), text
    else:
        text = text if "://" in text else str(Path(text).absolute())
        files, root = open_files(text, options or {})
    above, _, name = text.rpartition("/")
    return Storage(StorageSpec(url=above, name=name, options=options or {}), files, root)


def _from_seals(storage: Storage) -> Result:
    """Return what sealed checkpoints say, where the run did not live to leave its log."""
    found: list[Manifest] = []
    for name in directories(storage):
        try:
            found.append(msgspec.json.decode(storage.files.read(storage.inner(name, MANIFEST)), type=Manifest))
        except FileNotFoundError:
            continue
    if not found:
        raise RuntimeError(f"{storage.url}: no run of runfold has kept anything there")
    newest = max(found, key=lambda manifest: (manifest.index, manifest.attempt))
    return Result(
        run=newest.run,
        state="unknown",
        reason=f"the run has left no log in {posixpath.join(storage.url, '.runfold')}; its sealed checkpoints say this",
        metrics={name: unpack(value) for name, value in (newest.metrics or {}).items()},
        return_value=None,
        error=None,
        attempts=newest.attempt,
        duration_s=0.0,
        path=storage.url,
        checkpoint=storage.checkpoint(newest.name),
        _storage=storage,
    )
