"""Where a run's storage is, as its runner on one node sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from runfold.events.assignment import Work
from runfold.events.nats.blobs import Blobs
from runfold.workers.layout import StorageSpec
from runfold.workers.load import BLOB_PREFIX


class Home(Protocol):
    """What is known of a run where its processes are started."""

    @property
    def run(self) -> str:
        """The run."""
        ...

    @property
    def base_dir(self) -> str:
        """Where relative working directories start."""
        ...

    @property
    def storage_dir(self) -> str:
        """Where runs without a `storage_path` keep their checkpoints."""
        ...


class Storages:
    """Makes the spec of a run's storage; a filesystem given by the user is fetched once."""

    def __init__(self, spec: Home, blobs: Blobs) -> None:
        self._spec = spec
        self._blobs = blobs
        self._filesystems: dict[str, bytes] = {}

    async def of(self, work: Work) -> StorageSpec:
        """Return where the storage is. Raises `BrokerError` when the given filesystem cannot be fetched."""
        name, given = work.storage_name or self._spec.run, work.storage_filesystem
        if given is not None:
            path = work.storage_path or "runfold"
            return StorageSpec(url=path, name=name, filesystem=await self._filesystem(given), checked=True)
        named = work.storage_path is not None
        return StorageSpec(url=self._url(work), name=name, options=work.storage_options, checked=named)

    def _url(self, work: Work) -> str:
        """A path is looked up like an entry point's file: from the working directory."""
        if work.storage_path is None:
            return self._spec.storage_dir
        if "://" in work.storage_path:
            return work.storage_path
        return str(Path(self._spec.base_dir) / (work.working_dir or ".") / work.storage_path)

    async def _filesystem(self, blob: str) -> bytes:
        if blob not in self._filesystems:
            self._filesystems[blob] = await self._blobs.get(f"sha256:{blob.removeprefix(BLOB_PREFIX)}")
        return self._filesystems[blob]
