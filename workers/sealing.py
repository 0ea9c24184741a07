"""What is done in a run's storage beside the uploads: sealing, deleting, marking, looking for what is there."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from runfold.events.base import Json
from runfold.events.checkpoints import CheckpointState, ValidationWish, ranks_in
from runfold.events.limits import CHECKPOINTS_TRACKED_MAX_COUNT
from runfold.events.tasks import SealedAs
from runfold.events.transitions import FoundCheckpoint
from runfold.events.values import unpack
from runfold.workers.errors import StorageError
from runfold.workers.layout import (
    DOUBT,
    INNER,
    MANIFEST,
    VALIDATION,
    Manifest,
    Part,
    PartFile,
    SealedFile,
    Validated,
    is_inner,
    is_part,
    lives_in,
    part_name,
)
from runfold.workers.storage import Storage

DEPTH_MAX: Final = 4
"""How deep checkpoints are looked for below the run's directory."""
OWN_NAME: Final = re.compile(r"checkpoint_[0-9]+_([0-9]+)")
"""Directories that runfold has named: one without a seal was never whole, even if nothing more is in it."""


class SealOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a seal: `ranks` is the set of those with files."""

    name: str
    index: int
    attempt: int
    ranks: str
    world_size: int
    named: bool = False
    cursors: dict[str, str] = {}
    validation: ValidationWish | None = None


def seal(storage: Storage, run: str, order: SealOrder) -> SealedAs:
    """Write the manifest of a checkpoint whose ranks have all uploaded theirs, and return what it says.

    Again the same is the same manifest, and what a keeper that was killed over it has left goes. Raises `StorageError`
    when a part, or a file of one, is not there.
    """
    standing = _standing(storage, order.name)
    if standing is not None:
        manifest, digest = standing
        if (manifest.run, manifest.attempt, manifest.index) != (run, order.attempt, order.index):
            raise StorageError(
                f"{storage.path(order.name)} is sealed already, as report {manifest.index} of run {manifest.run}, "
                f"attempt {manifest.attempt}"
            )
        _clear(storage, order)
        return SealedAs(manifest_digest=digest, size_bytes=manifest.size_bytes, metrics=manifest.metrics)
    storage.check_own(run)
    ranks = ranks_in(order.ranks)
    there = storage.files.find(storage.path(order.name))
    parts = [_part(storage, run, order, rank, there) for rank in ranks]
    files = _merged(storage, order.name, parts, there)
    manifest = Manifest(
        run=run,
        name=order.name,
        index=order.index,
        attempt=order.attempt,
        world_size=order.world_size,
        files=files,
        ranks_without_files=tuple(sorted(set(range(order.world_size)) - set(ranks))),
        metrics=parts[0].metrics,
        cursors=order.cursors,
        validation=order.validation,
    )
    data = msgspec.json.encode(manifest)
    _sweep(storage, order.name, there, manifest)
    storage.files.write(storage.inner(order.name, MANIFEST), data)
    storage.files.settle(storage.path(order.name))
    _clear(storage, order)
    return SealedAs(
        manifest_digest=hashlib.sha256(data).hexdigest(), size_bytes=manifest.size_bytes, metrics=manifest.metrics
    )


def _clear(storage: Storage, order: SealOrder) -> None:
    """Remove the parts of a checkpoint that is sealed, and what another keeper was writing when it was killed."""
    files, inner = storage.files, storage.inner(order.name, "")
    files.remove_files(f"{inner}{name}" for name in sorted(files.find(inner)) if is_part(name))
    files.remove_unfinished(inner)


def _standing(storage: Storage, name: str) -> tuple[Manifest, str] | None:
    try:
        data = storage.files.read(storage.inner(name, MANIFEST))
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=Manifest), hashlib.sha256(data).hexdigest()
    except (msgspec.DecodeError, RecursionError) as error:
        raise StorageError(
            f"{storage.inner(name, MANIFEST)} is damaged: {error}. Nothing was changed there; bring it back from a "
            f"copy, or move {storage.path(name)} elsewhere, and what is left is begun from"
        ) from None


def _part(storage: Storage, run: str, order: SealOrder, rank: int, there: Iterable[str]) -> Part:
    """Return what a rank uploaded: its newest life in this attempt, should those before it have uploaded too."""
    names = [file.removeprefix(f"{INNER}/") for file in there if file.startswith(f"{INNER}/")]
    found = [_read_part(storage, order, rank, life) for life in lives_in(names, rank) or [1]]
    ours = [part for part in found if (part.run, part.attempt) == (run, order.attempt)]
    if not ours:
        raise StorageError(
            f"{storage.path(order.name)}: the files of rank {rank} are of run {found[0].run}, "
            f"attempt {found[0].attempt}"
        )
    for other in ours[1:]:
        _check_left_alone(storage, order.name, ours[0], other)
    return ours[0]


def _read_part(storage: Storage, order: SealOrder, rank: int, life: int) -> Part:
    path = storage.inner(order.name, part_name(rank, life))
    try:
        return msgspec.json.decode(storage.files.read(path), type=Part)
    except FileNotFoundError:
        raise StorageError(
            f"storage {storage.url} is not the same on all nodes: what rank {rank} uploaded to {order.name} cannot be "
            "seen by the runner of rank 0. Choose a storage_path that every node reaches under the same name: an "
            "object store (s3://…, gs://…) or a shared filesystem (NFS)"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: {error}") from None


def _check_left_alone(storage: Storage, name: str, part: Part, other: Part) -> None:
    """Raise `StorageError` when a life of a rank that is over has written over what a later one uploaded."""
    theirs = {file.path: file for file in other.files}
    for file in part.files:
        path = posixpath.join(storage.path(name), file.path)
        differs = theirs.get(file.path, file) != file
        if differs and storage.files.digest(path) != (file.size, file.sha256):
            raise StorageError(
                f"{storage.path(name)}: {file.path} of rank {part.rank} (life {part.life}) was written over by its "
                f"life {other.life}, which was taken for lost"
            )


def _merged(storage: Storage, name: str, parts: list[Part], there: dict[str, int]) -> tuple[SealedFile, ...]:
    """Return all parts' files. One that several ranks uploaded differently is as the last of them left it."""
    claims: dict[str, list[tuple[int, PartFile]]] = {}
    for part in parts:
        for file in part.files:
            claims.setdefault(file.path, []).append((part.rank, file))
    return tuple(_claimed(storage, name, path, claims[path], there.get(path)) for path in sorted(claims))


def _claimed(
    storage: Storage, name: str, path: str, claims: list[tuple[int, PartFile]], size: int | None
) -> SealedFile:
    rank, file = claims[0]
    if any((other.size, other.sha256) != (file.size, file.sha256) for _, other in claims):
        found = storage.files.digest(posixpath.join(storage.path(name), path))
        rank, file = next(
            ((rank, file) for rank, file in claims if (file.size, file.sha256) == found), (rank, PartFile(path, -1, ""))
        )
    if size != file.size:
        is_there = "is missing" if size is None else f"has {size} bytes, not those that were uploaded"
        raise StorageError(f"{storage.path(name)}: {path} of rank {rank} {is_there}")
    return SealedFile(path=path, rank=rank, size=file.size, sha256=file.sha256)


def _sweep(storage: Storage, name: str, there: Iterable[str], manifest: Manifest) -> None:
    """Remove what an attempt that ended has left in a directory named again."""
    wanted = {file.path for file in manifest.files}
    path = storage.path(name)
    strays = [file for file in there if file not in wanted and not is_inner(file)]
    storage.files.remove_files(posixpath.join(path, file) for file in strays)


def delete(storage: Storage, names: Iterable[str], *, sealed: bool) -> list[str]:
    """Delete checkpoints, the seal first; those with a seal only if `sealed`. Return what was deleted."""
    deleted: list[str] = []
    for name in names:
        has_seal = storage.files.exists(storage.inner(name, MANIFEST))
        if has_seal and not sealed:
            continue
        if has_seal:
            storage.files.remove_files([storage.inner(name, MANIFEST)])
        inside = [f"{name}/{other}" for other in _sealed_below(storage.files.find(storage.path(name)))]
        if inside:
            _delete_around(storage, name, inside)
        else:
            storage.files.remove(storage.path(name))
        deleted.append(name)
    return deleted


def _sealed_below(files: Iterable[str]) -> list[str]:
    """Return the directories of checkpoints within another one's: named `a/b` beside `a`."""
    tail = f"/{INNER}/{MANIFEST}"
    return sorted(file.removesuffix(tail) for file in files if file.endswith(tail))


def _delete_around(storage: Storage, name: str, inside: list[str]) -> None:
    paths = (f"{name}/{file}" for file in storage.files.find(storage.path(name)))
    gone = [path for path in paths if not any(path.startswith(f"{other}/") for other in inside)]
    storage.files.remove_files(storage.path(path) for path in gone)


def doubt(storage: Storage, run: str, names: Iterable[str]) -> None:
    """Mark checkpoints whose files may not belong together."""
    for name in names:
        storage.files.write(storage.inner(name, DOUBT), msgspec.json.encode({"v": 1, "by": run}))


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What there is in a storage: the run that wrote there before, its sealed checkpoints, those in doubt.

    `damaged`: directories whose seal cannot be read; nothing of them was changed.
    """

    run: str | None = None
    checkpoints: tuple[FoundCheckpoint, ...] = ()
    doubtful: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def look(storage: Storage, run: str, attribute: str | None) -> Inventory:
    """Mark the storage as this run's, delete what was never sealed, and say what an earlier run left.

    `attribute` names the metric that is the score. Raises `StorageError` for a storage that cannot be used, and when
    there are only checkpoints whose seals cannot be read.
    """
    before = storage.mark(run)
    manifests: list[Manifest] = []
    damaged: dict[str, StorageError] = {}
    unsealed: list[str] = []
    for name in directories(storage):
        try:
            standing = _standing(storage, name)
        except StorageError as error:
            damaged[name] = error
            continue
        if standing is not None:
            manifests.append(standing[0])
        else:
            unsealed.append(name)
    if damaged and not manifests:
        raise damaged[max(damaged)]
    delete(storage, unsealed, sealed=False)
    manifests.sort(key=lambda manifest: (manifest.index, manifest.attempt))
    found = manifests[-CHECKPOINTS_TRACKED_MAX_COUNT:]
    doubtful = tuple(one.name for one in found if storage.files.exists(storage.inner(one.name, DOUBT)))
    results = {one.name: _result(storage, one.name) for one in found if one.validation is not None}
    other = None if before is None or before.run == run else before.run
    return Inventory(
        run=other or (found[-1].run if found else None),
        checkpoints=tuple(
            FoundCheckpoint(
                name=one.name,
                index=one.index,
                attempt=one.attempt,
                shards=len({file.rank for file in one.files}),
                score=_value({**(one.metrics or {}), **(results.get(one.name) or {})}, attribute),
                status=_status(one, results),
                wish=one.validation if results.get(one.name) is None else None,
            )
            for one in found
        ),
        doubtful=doubtful,
        damaged=tuple(sorted(damaged)[-CHECKPOINTS_TRACKED_MAX_COUNT:]),
    )


def _result(storage: Storage, name: str) -> dict[str, Json] | None:
    """Return what the validation of a checkpoint found; None for one that is not over."""
    try:
        return msgspec.json.decode(storage.files.read(storage.inner(name, VALIDATION)), type=Validated).metrics
    except (FileNotFoundError, msgspec.DecodeError, RecursionError):
        return None


def _status(manifest: Manifest, results: dict[str, dict[str, Json] | None]) -> CheckpointState:
    if manifest.validation is None:
        return "committed"
    return "pending" if results.get(manifest.name) is None else "validated"


def directories(storage: Storage, within: str = "", depth: int = 1) -> Iterable[str]:
    """Yield the names of all directories that are checkpoints, or were to become some."""
    for folder in storage.files.folders(storage.path(within) if within else storage.root):
        if folder == INNER:
            continue
        name = f"{within}/{folder}" if within else folder
        inner = storage.files.folders(storage.path(name))
        if INNER in inner or OWN_NAME.fullmatch(folder):
            yield name
        if depth < DEPTH_MAX and any(one != INNER for one in inner):
            yield from directories(storage, name, depth + 1)


def left_before(storage: Storage, attempt: int) -> list[str]:
    """Return the directories that runfold named for earlier attempts."""
    found = ((name, OWN_NAME.fullmatch(name)) for name in storage.files.folders(storage.root))
    return [name for name, own in found if own is not None and int(own[1]) < attempt]


def _value(metrics: dict[str, Json] | None, attribute: str | None) -> float | None:
    """Return the metric that is the score, if it is a finite number: what else ranks worst anyway."""
    if attribute is None:
        return None
    unpacked = {key: unpack(item) for key, item in (metrics or {}).items()}
    value: Json = unpacked.get(attribute)
    if attribute not in unpacked:
        first, *rest = attribute.split("/")
        value = unpacked.get(first)
        for part in rest:
            value = value.get(part) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and abs(value) <= 1e308 else None
