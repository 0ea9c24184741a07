"""The files that runfold itself keeps beside checkpoints. These names and forms are the storage format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from runfold.events.base import Document, Json, Value
from runfold.events.checkpoints import ValidationWish

MARKER: Final = ".runfold-marker.json"
INNER: Final = ".runfold"
"""The folder in a checkpoint's directory that holds what is not the user's."""
MANIFEST: Final = "manifest.json"
DOUBT: Final = "doubt.json"
VALIDATION: Final = "validation.json"
"""What a validation found."""
METADATA: Final = ".metadata.json"
"""The metadata of `Checkpoint.set_metadata`: may change at any time, so it has no digest."""

_PART: Final = re.compile(r"part-([0-9]+)(?:\.([0-9]+))?\.json")


class StorageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's storage is: a URL or an absolute path, and the directory's name within it.

    `options` go to fsspec; `filesystem` is a pickled filesystem of fsspec, `url` then being a path on it. `checked`:
    somebody has written the marker, and who uploads must see it.
    """

    url: str
    name: str
    options: dict[str, Json] = {}
    filesystem: bytes | None = None
    checked: bool = False

    @property
    def shown(self) -> str:
        """Where it is, for people."""
        return f"{self.url.rstrip('/')}/{self.name}"


class Marker(Document, frozen=True, kw_only=True):
    """Which run writes to a storage directory."""

    v: Literal[1] = 1
    run: str


def part_name(rank: int, life: int = 1) -> str:
    """Return the name of a rank's part: each of its lives has its own, which no other writes over."""
    return f"part-{rank}.json" if life <= 1 else f"part-{rank}.{life}.json"


def is_part(name: str) -> bool:
    """Whether a file of `INNER` is some rank's part."""
    return _PART.fullmatch(name) is not None


def lives_in(names: Iterable[str], rank: int) -> list[int]:
    """Return the lives of a rank whose parts are among these names of files, the newest first."""
    found = (_PART.fullmatch(name) for name in names)
    return sorted((int(one[2] or 1) for one in found if one is not None and int(one[1]) == rank), reverse=True)


def is_inner(file: str) -> bool:
    """Whether a path within a checkpoint's directory is runfold's own, not the user's."""
    return INNER in file.split("/")


def is_within(path: str) -> bool:
    """Whether a path names a file in a checkpoint's directory: what is read of it is about to be written elsewhere."""
    return not path.startswith("/") and "\0" not in path and not {"", ".", ".."}.intersection(path.split("/"))


def _check_within(path: str) -> None:
    if not is_within(path):
        raise ValueError(f"{path!r} is no file within the checkpoint's directory")


class PartFile(Value, frozen=True):
    """A file that a rank uploaded, by its path in the checkpoint's directory."""

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        """Raise `ValueError` for a path that leads out of the directory."""
        _check_within(self.path)


class Part(Document, frozen=True, kw_only=True):
    """What a rank uploaded for one report, and the metrics (packed) that it reported with it."""

    v: Literal[1] = 1
    run: str
    attempt: int
    life: int
    rank: int
    index: int
    files: tuple[PartFile, ...]
    metrics: dict[str, Json] | None = None


class SealedFile(Value, frozen=True):
    """A file of a checkpoint: the rank it is from, its size and digest."""

    path: str
    rank: int
    size: int
    sha256: str

    def __post_init__(self) -> None:
        """Raise `ValueError` for a path that leads out of the directory."""
        _check_within(self.path)


class Manifest(Document, frozen=True, kw_only=True):
    """The seal of a checkpoint: all its files. `ranks_without_files` passed the report without one.

    `metrics` are those of the lowest rank with files; `run` and `attempt` say who made it. `cursors`: where the ranks
    were in their data, by sets of ranks. `validation`: it is to be validated.
    """

    v: Literal[1] = 1
    kind: Literal["checkpoint_manifest"] = "checkpoint_manifest"
    run: str
    name: str
    index: int
    attempt: int
    world_size: int
    files: tuple[SealedFile, ...]
    ranks_without_files: tuple[int, ...] = ()
    metrics: dict[str, Json] | None = None
    cursors: dict[str, str] = {}
    validation: ValidationWish | None = None

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size for file in self.files)


class Validated(Document, frozen=True, kw_only=True):
    """What a validation found (packed), beside its checkpoint."""

    v: Literal[1] = 1
    metrics: dict[str, Json] = {}
