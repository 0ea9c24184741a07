"""What a rank is given beside its function, and what it may ask for: data sets, validations, the run's checkpoints."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from runfold.events.base import Json
from runfold.events.checkpoints import CheckpointState, ValidationWish
from runfold.events.values import Unencodable, pack, unpack
from runfold.workers.data import DataConfig, Given, RankData
from runfold.workers.errors import DataError
from runfold.workers.layout import MANIFEST, VALIDATION, Manifest, Validated

if TYPE_CHECKING:
    from runfold.workers.checkpoint import Checkpoint
    from runfold.workers.link import Start
    from runfold.workers.storage import Storage


class ValidationTaskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One validation: arguments for the function, over those of the run, and how long it may take (None: for ever)."""

    fn_kwargs: dict[str, object] = {}
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s: must be more than 0 seconds or None, not {self.timeout_s!r}")


def wished(given: object, *, with_checkpoint: bool, validates: bool) -> ValidationWish | None:
    """Return what `report(validation=…)` asks for; raise `ValueError` when it cannot be had."""
    if given is False:
        return None
    if not with_checkpoint:
        raise ValueError("report(validation=…) needs a checkpoint to validate")
    if not validates:
        raise ValueError("report(validation=…): this run has no validation_config, so there is no function to call")
    if given is True:
        return ValidationWish()
    if not isinstance(given, ValidationTaskConfig):
        raise ValueError(f"validation: must be a bool or a ValidationTaskConfig, not {type(given).__name__}")
    return ValidationWish(own=True, arguments=packed_arguments(given.fn_kwargs), timeout_s=given.timeout_s)


def packed_arguments(arguments: Mapping[str, object]) -> dict[str, Json]:
    """Return keyword arguments as they travel."""
    try:
        packed = pack(dict(arguments), "fn_kwargs")
    except Unencodable as error:
        raise ValueError(str(error)) from None
    return packed if isinstance(packed, dict) else {}


# --- data sets


def data_of(start: Start, storage: Storage | None, checkpoint: str | None) -> RankData | None:
    """Return the rank's data sets; None when the run has none."""
    if start.datasets is None:
        return None
    return RankData(
        partial(_loaded, start.datasets),
        rank=start.rank,
        world=start.world_size,
        left=partial(_left, storage, checkpoint),
    )


def _loaded(data: bytes) -> Given:
    given: object = pickle.loads(data)  # noqa: S301  # made by the user who submitted the job, for this process
    if not isinstance(given, tuple):
        raise DataError("the data sets of this run cannot be read: they were pickled by another version of runfold")
    datasets, config = cast("tuple[dict[str, object], DataConfig]", given)
    return Given(datasets=datasets, config=config)


def _left(storage: Storage | None, checkpoint: str | None) -> tuple[dict[str, str], int]:
    if storage is None or checkpoint is None:
        return {}, 0
    manifest = storage.checkpoint(checkpoint, committed=True).committed_manifest()
    return manifest.cursors, manifest.world_size


# --- checkpoints


class CheckpointConsistencyMode(Enum):
    """What `get_all_reported_checkpoints` waits for."""

    COMMITTED = "committed"
    VALIDATED = "validated"


class ReportedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that counts: the metrics reported with it and found by its validation, and how that stands."""

    checkpoint: Checkpoint
    metrics: dict[str, Json]
    status: CheckpointState


def metrics_in(storage: Storage, name: str) -> dict[str, Json]:
    """Return the metrics of a checkpoint, as its storage has them: those of its report, then of its validation."""
    manifest = msgspec.json.decode(storage.files.read(storage.inner(name, MANIFEST)), type=Manifest)
    found: dict[str, Json] = dict(manifest.metrics or {})
    try:
        found |= msgspec.json.decode(storage.files.read(storage.inner(name, VALIDATION)), type=Validated).metrics
    except (FileNotFoundError, msgspec.DecodeError):
        pass
    return {key: unpack(value) for key, value in found.items()}
