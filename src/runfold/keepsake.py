"""A run's log beside its checkpoints, so that its storage alone tells what it did.

```text
<storage_path>/<name>/.runfold/
    run-<id>.jsonl.zst       the log as `runfold export` writes it, put there when the run has ended
    blob-<sha256>            what rank 0 returned, where that was large
```
"""

from __future__ import annotations

import logging
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zstandard

from runfold.events.fold import fold, fold_all
from runfold.events.transitions import RunAccepted
from runfold.locate import STORAGE_FOLDER
from runfold.replay.errors import ReplayError
from runfold.replay.export import export_lines, exported, read_export
from runfold.replay.unarchive import read_blob, read_through
from runfold.workers.capture import Capture
from runfold.workers.errors import StorageError
from runfold.workers.layout import INNER, StorageSpec
from runfold.workers.payload import pickle_any
from runfold.workers.storage import Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from runfold.events.job import Job
    from runfold.events.state import RunState
    from runfold.replay.history import History, Link
    from runfold.replay.manifest import LastManifest
    from runfold.replay.store import Store

PREFIX: Final = "run-"
SUFFIX: Final = ".jsonl.zst"
BLOB_PREFIX: Final = "blob-"
KEPT_MAX_BYTES: Final = 1024 * 1024 * 1024
_LOG: Final = logging.getLogger("runfold")


def spec_of(job: Job, storage_dir: Path, filesystem: object | None = None) -> StorageSpec | None:
    """Return where a run keeps its checkpoints; None on a filesystem of the user's own that is not given.

    A path is looked up from the working directory, as in the ranks; without one it is in `storage_dir`.
    """
    name = job.storage_name or str(job.id)
    if job.storage_filesystem is not None:
        if filesystem is None:
            return None
        return StorageSpec(url=job.storage_path or "runfold", name=name, filesystem=pickle_any(filesystem))
    if job.storage_path is None:
        return StorageSpec(url=str(storage_dir), name=name)
    is_url = "://" in job.storage_path
    url = job.storage_path if is_url else str(Path(job.working_dir or ".").absolute() / job.storage_path)
    return StorageSpec(url=url, name=name, options=job.storage_options)


def storage_of(job: Job, storage_dir: Path, filesystem: object | None = None) -> Storage | None:
    """Return a run's storage; None when it cannot be opened from here."""
    spec = spec_of(job, storage_dir, filesystem)
    try:
        return None if spec is None else open_storage(spec)
    except StorageError:
        return None


def keep(history: History, state: RunState, storage: Storage | None, blobs: Mapping[str, bytes]) -> None:
    """Put the log of an ended run into its storage, if checkpoints are there; again it is the same bytes.

    Raises `OSError` (or what its client library raises) when it cannot be written.
    """
    if storage is None or not state.terminal or not _is_to_be_kept(storage, state.run):
        return
    lines = zstandard.ZstdCompressor().compress(b"".join(export_lines(history)))
    _put(storage, state, lines, blobs)


def _is_to_be_kept(storage: Storage, run: str) -> bool:
    """Whether checkpoints are there, and the log is not: one that has ended does not change."""
    return storage.files.exists(storage.root) and not storage.files.exists(storage.inner("", _name(run)))


def _name(run: str) -> str:
    return f"{PREFIX}{run}{SUFFIX}"


def _put(storage: Storage, state: RunState, lines: bytes, blobs: Mapping[str, bytes]) -> None:
    if (returned := _bare(state.return_blob)) and returned in blobs:
        storage.files.write(storage.inner("", f"{BLOB_PREFIX}{returned}"), blobs[returned])
    storage.files.write(storage.inner("", _name(state.run)), lines)


def keep_archived(store: Store, last: LastManifest, data_dir: Path) -> None:
    """Put the log of a run that was archived into its storage too; what goes wrong is only logged."""
    with Capture() as keeping:
        _keep_archived(store, last, data_dir)
    if keeping.error is not None:
        _LOG.warning("the log of %s was not put into its storage: %s", last.run, keeping.error)


def _keep_archived(store: Store, last: LastManifest, data_dir: Path) -> None:
    first = next(read_through(store, last.run)).entry
    job = next(item.job for item in first.transitions if isinstance(item, RunAccepted))
    storage = storage_of(job, data_dir / STORAGE_FOLDER)
    if storage is None or not _is_to_be_kept(storage, last.run):
        return
    folding = _Folding()
    # Twice through it: what is packed states its size, so that whoever unpacks it knows how much that will be.
    size = sum(map(len, exported(last.run, last.head, folding.through(read_through(store, last.run)))))
    packer = zstandard.ZstdCompressor().compressobj(size=size)
    packed = [packer.compress(line) for line in exported(last.run, last.head, read_through(store, last.run))]
    packed.append(packer.flush())
    if folding.state is not None:
        bare = _bare(folding.state.return_blob)
        _put(storage, folding.state, b"".join(packed), {bare: read_blob(store, bare)} if bare else {})


class _Folding:
    """The state of a run whose entries are passed through."""

    def __init__(self) -> None:
        self.state: RunState | None = None

    def through(self, links: Iterable[Link]) -> Iterator[Link]:
        """Yield the same entries, each folded before."""
        for link in links:
            self.state = fold(self.state, link.entry)
            yield link


def keep_result(read: Callable[[], History], storage: Storage | None, returned: bytes | None) -> None:
    """Put the log of a run into its storage, as who has run it does; what goes wrong is only logged."""
    if storage is None:
        return
    with Capture() as keeping:
        if storage.files.exists(storage.root):
            history = read()
            state = fold_all(history.entries)
            blobs = {} if returned is None else {_bare(state.return_blob): returned}
            keep(history, state, storage, blobs)
    if keeping.error is not None:
        _LOG.warning("the log of a run was not put into its storage %s: %s", storage.url, keeping.error)


def _bare(digest: str | None) -> str:
    return (digest or "").rpartition(":")[2]


def kept(storage: Storage) -> History | None:
    """Return the log of the run that ended last among those kept in a storage; None when there is none to be read."""
    found: list[History] = []
    for name in storage.files.find(posixpath.join(storage.root, INNER)):
        if name.startswith(PREFIX) and name.endswith(SUFFIX):
            data = storage.files.read(storage.inner("", name))
            try:
                # `max_output_size` counts only where the frame does not tell its size.
                if zstandard.frame_content_size(data) > KEPT_MAX_BYTES:
                    _LOG.warning("%s holds more than kept_max_bytes (%d): passed over", name, KEPT_MAX_BYTES)
                    continue
                lines = zstandard.ZstdDecompressor().decompress(data, max_output_size=KEPT_MAX_BYTES)
                found.append(read_export(lines, name))
            except (zstandard.ZstdError, ReplayError):
                continue
    whole = [history for history in found if history.links]
    return max(whole, key=lambda history: history.entries[-1].at, default=None)


def kept_blob(storage: Storage, digest: str) -> bytes | None:
    """Return what a kept log names; None when it is not there."""
    try:
        return storage.files.read(storage.inner("", f"{BLOB_PREFIX}{_bare(digest)}"))
    except FileNotFoundError:
        return None
