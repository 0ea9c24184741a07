"""What a job's user code travels in: pickled, named by digest, put on the broker before the job is published."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from runfold.config import read_settings
from runfold.errors import UsageError
from runfold.events.config import HooksConfig, ValidationSpec
from runfold.pickling import pickle_object
from runfold.workers.callbacks import Callback, gates_of, in_ranks, never_asked
from runfold.workers.data import DataConfig
from runfold.workers.given import packed_arguments
from runfold.workers.load import BLOB_PREFIX
from runfold.workers.streams import Rows, is_ray_dataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from runfold.validation import ValidationConfig

NEVER_CALLED: Final = {
    "on_worker_group_start": "before_worker_group_start and after_worker_group_start",
    "on_worker_group_shutdown": "before_worker_group_shutdown and after_worker_group_shutdown",
}
"""Hooks of the peer that are not called, and what to use instead."""
DATASETS_MAX_BYTES: Final = 128 * 1024 * 1024


class Parcels:
    """The blobs of one job."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []

    def add(self, blob: bytes) -> str:
        """Take a blob along and return how a job names it."""
        self.blobs.append(blob)
        return BLOB_PREFIX + hashlib.sha256(blob).hexdigest()

    def blob(self, name: str | None) -> bytes | None:
        """Return the blob that a job names; None for no name."""
        return next((one for one in self.blobs if BLOB_PREFIX + hashlib.sha256(one).hexdigest() == name), None)

    def hooks(self, callbacks: Sequence[object]) -> HooksConfig:
        """Return how callbacks are called where the run is: those given, after those of RUNFOLD_CALLBACKS."""
        named = [(name, load_callback(name)) for name in read_settings().callbacks]
        everyone = [*(callback for _, callback in named), *callbacks]
        check_hooks(everyone)
        gates, ranks = gates_of(everyone), in_ranks(everyone)
        if not gates and not ranks:
            return HooksConfig()
        names = [name for name, _ in named]
        if callbacks:
            names.append(self.add(pickle_object(list(callbacks), *(type(callback) for callback in callbacks))))
        return HooksConfig(callbacks=tuple(names), gates=gates, in_ranks=ranks)

    def datasets(self, datasets: Mapping[str, object] | None, config: DataConfig | None) -> str | None:
        """Return how the job names its data sets; None when it has none."""
        if not datasets:
            return None
        given = {name: _portable(data) for name, data in datasets.items()}
        whose: list[object] = [data if callable(data) else type(data) for data in given.values()]
        blob = pickle_object((given, config or DataConfig()), *whose)
        if len(blob) > DATASETS_MAX_BYTES:
            raise UsageError(
                f"datasets: {len(blob)} bytes when pickled, over datasets_max_bytes ({DATASETS_MAX_BYTES}); give a "
                "callable of no argument, which is called in the ranks and returns the data"
            )
        return self.add(blob)

    def validation(self, config: ValidationConfig) -> ValidationSpec:
        """Return how the job says that checkpoints are validated."""
        from runfold.pickling import pickle_function

        return ValidationSpec(
            entrypoint=config.fn if isinstance(config.fn, str) else self.add(pickle_function(config.fn)),
            arguments=packed_arguments(config.task_config.fn_kwargs),
            timeout_s=config.task_config.timeout_s,
            max_concurrent=config.max_concurrent,
            resources=config.resources,
        )


def _portable(data: object) -> object:
    """Return data that can travel: what can be gone over only once is, here; a Ray dataset's rows are taken."""
    if isinstance(data, Iterator):
        return list(cast("Iterator[object]", data))
    return Rows.of(data) if is_ray_dataset(data) else data


def check_hooks(callbacks: Iterable[object]) -> None:
    """Refuse hooks of the peer that nothing calls here: silence would look like a callback that works."""
    for callback in callbacks:
        for hook, instead in NEVER_CALLED.items():
            if callable(getattr(callback, hook, None)):
                raise UsageError(
                    f"callbacks: {type(callback).__name__}.{hook} is a context around the controller's own work, which "
                    f"no user code runs in here; use {instead}"
                )
        if wrong := never_asked(callback):
            raise UsageError(
                f"callbacks: {type(callback).__name__}.{wrong[0]} is marked as a gate, and nothing is decided when it "
                "is called: leave out the mark, and it is told as an observer"
            )


def named_callbacks() -> list[object]:
    """Return the callbacks that RUNFOLD_CALLBACKS names."""
    return [load_callback(name) for name in read_settings().callbacks]


def load_callback(name: str) -> Callback:
    """Return the callback of an import path, made without arguments; raise `UsageError` when it cannot be had."""
    module, _, attribute = name.partition(":")
    with suppress(FileNotFoundError):  # the directory is gone
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)  # a program of ours does not look where it is called; its user does
    try:
        found: object = getattr(importlib.import_module(module), attribute)
        made = found() if isinstance(found, type) else found
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(f"the callback {name} cannot be loaded: {error}") from error
    if not isinstance(made, Callback):
        raise UsageError(f"the callback {name} is no runfold.Callback but {type(made).__name__}")
    return made
