"""The configuration of a job: the same classes in Python, in a job file and on the wire.

Every class checks itself when it is made, from Python as from JSON: a wrong value is a `ValueError` whose message
begins with the field's name. Names and defaults are the peer's.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Final, Literal

import msgspec

from runfold.events.base import Json
from runfold.events.limits import CHECKPOINTS_TRACKED_MAX_COUNT, WORLD_SIZE_MAX
from runfold.events.slices import Slice, slice_of

PlacementStrategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
BACKENDS: Final = ("none", "torch", "torchft")
"""The backends that come with runfold."""
_OWN_BACKEND: Final = re.compile(r"[^\x00-\x1f:]+:[A-Za-z_][\w.]*")


class Config(msgspec.Struct, frozen=True):
    """Base of all configuration classes; all fields are written."""


def _check_count(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: must be an integer, not {value!r}")
    if value < low:
        raise ValueError(f"{name}: must be at least {low}, not {value}")


def _check_seconds(name: str, value: float | None) -> None:
    if value is not None and (not math.isfinite(value) or value < 0):
        raise ValueError(f"{name}: must be a finite number of seconds, 0 or more, not {value!r}")


def check_flags(config: Config) -> None:
    """Refuse what is no bool where one is expected: "no" would be taken for yes."""
    for name in _flags(type(config)):
        value: object = getattr(config, name)
        if not isinstance(value, bool):
            raise ValueError(f"{name}: must be True or False, not {value!r}")


@cache
def _flags(kind: type[Config]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.type is bool)


class ScalingConfig(Config, frozen=True):
    """How many ranks, and what each needs. `num_workers` is a number, or (min, max) for an elastic run.

    With `replica_group_size` so many ranks each are a replica group: it holds the whole model, and one that fails is
    replaced while the others train on. Collectives are those of a replica group then.
    """

    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: dict[str, float] | None = None
    placement_strategy: PlacementStrategy = "PACK"
    accelerator_type: str | None = None
    label_selector: dict[str, str] | list[dict[str, str]] | None = None
    use_tpu: bool = False
    topology: str | None = None
    elastic_resize_monitor_interval_s: float = 60.0
    replica_group_size: int | None = None

    def __post_init__(self) -> None:
        check_flags(self)
        if isinstance(self.num_workers, tuple):
            if len(self.num_workers) != 2:
                raise ValueError(f"num_workers: must be a number or (min, max), not {self.num_workers!r}")
            low, high = self.num_workers
            _check_count("num_workers", low, 0)
            _check_count("num_workers", high, low)
        else:
            _check_count("num_workers", self.num_workers, 0)
        if self.max_workers > WORLD_SIZE_MAX:
            raise ValueError(f"num_workers: must be at most world_size_max ({WORLD_SIZE_MAX}), not {self.max_workers}")
        self._check_resources()
        self._check_slices()
        self._check_replicas()
        if isinstance(self.label_selector, list) and len(self.label_selector) != self.max_workers:
            raise ValueError(
                f"label_selector: a list needs one item a worker ({self.max_workers}), not {len(self.label_selector)}"
            )
        _check_seconds("elastic_resize_monitor_interval_s", self.elastic_resize_monitor_interval_s)

    def _check_replicas(self) -> None:
        size = self.replica_group_size
        if size is None:
            return
        _check_count("replica_group_size", size, 1)
        for count in dict.fromkeys((self.min_workers, self.max_workers)):
            if count % size:
                raise ValueError(f"num_workers: {count} is no multiple of replica_group_size ({size})")

    def _check_resources(self) -> None:
        given = self.resources_per_worker or {}
        for name, amount in given.items():
            if not math.isfinite(amount) or amount < 0:
                raise ValueError(f"resources_per_worker: {name} must be a finite amount, 0 or more, not {amount!r}")
        if self.use_gpu and self.use_tpu:
            raise ValueError("use_gpu: cannot be combined with use_tpu")
        for name, used, flag in (("GPU", self.use_gpu, "use_gpu"), ("TPU", self.use_tpu, "use_tpu")):
            if name in given and given[name] > 0 and not used:
                raise ValueError(f"resources_per_worker: asks for {name} while {flag} is false")
            if used and given.get(name, 1) == 0:
                raise ValueError(f"resources_per_worker: {name} is 0 while {flag} is true")

    def _check_slices(self) -> None:
        """TPUs are had in whole slices."""
        if not self.use_tpu:
            return
        if self.max_workers > 1:
            if self.topology is None or self.accelerator_type is None:
                raise ValueError("topology: more than one TPU worker needs topology and accelerator_type")
            if self.label_selector is not None:
                raise ValueError("label_selector: cannot be combined with use_tpu: the slices are chosen by it")
        whole = self.slice
        if whole is None:
            return
        count = whole.workers(self.worker_resources["TPU"])
        if count == 0:
            raise ValueError(
                f"resources_per_worker: {self.worker_resources['TPU']:g} TPU are more than the {whole.chips} chips "
                f"of a slice {whole.topology}"
            )
        for size in dict.fromkeys((self.min_workers, self.max_workers)):
            if size % count:
                raise ValueError(
                    f"num_workers: {size} is no multiple of {count}, the workers of a slice {whole.topology}"
                )

    @property
    def slice(self) -> Slice | None:
        """The TPU slice that the workers come in; None when they come one by one."""
        if not self.use_tpu or self.topology is None or self.accelerator_type is None:
            return None
        return slice_of(self.topology, self.accelerator_type)

    @property
    def min_workers(self) -> int:
        """Fewest ranks the run may have."""
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int:
        """Most ranks the run may have."""
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def elastic(self) -> bool:
        """Whether the size may change while the run lives."""
        return isinstance(self.num_workers, tuple)

    @property
    def worker_resources(self) -> dict[str, float]:
        """What one rank needs, zero amounts dropped; one CPU (or GPU, or TPU) when nothing was said."""
        whole = self.slice
        tpu = {"TPU": 1.0} if whole is None else whole.host_resources
        if self.resources_per_worker is None:
            return {"GPU": 1.0} if self.use_gpu else tpu if self.use_tpu else {"CPU": 1.0}
        given = {name: amount for name, amount in self.resources_per_worker.items() if amount > 0}
        if self.use_tpu:
            given = {**given, "TPU": given.get("TPU", tpu["TPU"])}
        return {**given, "GPU": 1.0} if self.use_gpu and "GPU" not in given else given


class FailureConfig(Config, frozen=True):
    """The four budgets and what surrounds them; −1 is unlimited, 0 is none.

    `relax_collectives_on_preemption` has no effect: neither `report` nor `get_preemption_info` is a collective here.
    """

    max_failures: int = 0
    controller_failure_limit: int = -1
    max_preemption_failures: int = -1
    max_hangs: int = 1
    relax_collectives_on_preemption: bool = False
    preemption_grace_s: float = 0.0
    backoff_s: float = 0.0
    backoff_max_s: float = 60.0
    reset_after_progress: int | None = None
    repeat_limit: int | None = None
    node_exclude_after: int | None = None

    def __post_init__(self) -> None:
        check_flags(self)
        for name in ("max_failures", "controller_failure_limit", "max_preemption_failures", "max_hangs"):
            _check_count(name, getattr(self, name), -1)
        for name in ("preemption_grace_s", "backoff_s", "backoff_max_s"):
            _check_seconds(name, getattr(self, name))
        for name in ("reset_after_progress", "repeat_limit", "node_exclude_after"):
            value = getattr(self, name)
            if value is not None:
                _check_count(name, value, 1)


class CheckpointConfig(Config, frozen=True):
    """Which checkpoints are kept, and how they are uploaded.

    `upload_threads_max` files of a report are uploaded at a time, in pieces of `upload_chunk_bytes`; so many pieces are
    in memory. `upload_queue_max` asynchronous uploads wait at most: then `report` does. After `upload_failure_limit`
    failed ones in a row the next raises (None: 0 for synchronous ones, 3 for asynchronous ones). `verify_on_download`:
    digests are checked. `resume_doubtful`: also from checkpoints whose files may not belong together.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"
    upload_threads_max: int = 4
    upload_chunk_bytes: int = 8 * 1024 * 1024
    upload_queue_max: int = 2
    upload_retries_max: int = 3
    upload_failure_limit: int | None = None
    verify_on_download: bool = True
    resume_doubtful: bool = False

    def __post_init__(self) -> None:
        check_flags(self)
        if self.num_to_keep is not None:
            _check_count("num_to_keep", self.num_to_keep, 1)
            if self.num_to_keep > CHECKPOINTS_TRACKED_MAX_COUNT:
                raise ValueError(
                    f"num_to_keep: must be at most checkpoints_tracked_max ({CHECKPOINTS_TRACKED_MAX_COUNT}), "
                    f"not {self.num_to_keep}; None keeps all"
                )
        for name in ("upload_threads_max", "upload_chunk_bytes", "upload_queue_max"):
            _check_count(name, getattr(self, name), 1)
        _check_count("upload_retries_max", self.upload_retries_max, 0)
        if self.upload_failure_limit is not None:
            _check_count("upload_failure_limit", self.upload_failure_limit, 0)
        if self.checkpoint_score_order not in ("max", "min"):
            raise ValueError(f"checkpoint_score_order: must be 'max' or 'min', not {self.checkpoint_score_order!r}")


class BackendConfig(Config, frozen=True):
    """What sets up the ranks' communication: `none` (the collectives of runfold itself), `torch` or `torchft`.

    `torch` is a process group over all ranks, `torchft` one over the ranks of each replica group (see `ScalingConfig`;
    of one rank each if nothing is said), with a lighthouse by which the groups find each other. Or one of your own,
    found like an entry point: `module:name` or `file.py:name` of what makes a `runfold.workers.backends.Backend` of a
    rank's `Place`.

    Options of `torch`: `backend` (default: nccl with GPUs, else gloo), `init_method` (`env`, the default, or `tcp`),
    `timeout_s` (default 1800). `torchft` has them too, and `lighthouse`: the address of one that runs already; without,
    rank 0's runner starts one, with the options of `lighthouse_kwargs`.
    """

    kind: str = "none"
    options: dict[str, Json] = {}

    def __post_init__(self) -> None:
        if self.kind not in BACKENDS and not _OWN_BACKEND.fullmatch(self.kind):
            raise ValueError(
                f"kind: must be one of {', '.join(BACKENDS)}, or module:name of your own, not {self.kind!r}"
            )

    @property
    def shares_gpus(self) -> bool:
        """Whether each rank sees the GPUs of all ranks on its node."""
        return self.kind in BACKENDS and self.kind != "none"


class ValidationSpec(Config, frozen=True):
    """How checkpoints are validated: by `entrypoint(checkpoint, **arguments)`, which returns metrics.

    Each runs in a process of its own with `resources`, `max_concurrent` at a time, for at most `timeout_s`.
    """

    entrypoint: str
    arguments: dict[str, Json] = {}
    timeout_s: float | None = None
    max_concurrent: int = 1
    resources: dict[str, float] = msgspec.field(default_factory=lambda: {"CPU": 1.0})

    def __post_init__(self) -> None:
        _check_count("max_concurrent", self.max_concurrent, 1)
        _check_seconds("timeout_s", self.timeout_s)
        if self.timeout_s == 0:
            raise ValueError("timeout_s: must be more than 0 seconds, or None")
        for name, amount in self.resources.items():
            if not math.isfinite(amount) or amount < 0:
                raise ValueError(f"resources: {name} must be a finite amount, 0 or more, not {amount!r}")


class HooksConfig(Config, frozen=True):
    """User code that is called beside the training: in a hook process, and in the ranks.

    `callbacks` are entry points of callback objects, or of lists of them: `module:name` or `blob:sha256:<digest>`.
    `gates` names the hooks that the controller asks, and what it does when one raises or does not answer: `fail`
    (the run ends as errored) or `warn` (it is only told). `in_ranks`: some have hooks for the ranks.
    """

    callbacks: tuple[str, ...] = ()
    gates: dict[str, Literal["fail", "warn"]] = {}
    in_ranks: bool = False

    def __post_init__(self) -> None:
        check_flags(self)


class Timeouts(Config, frozen=True):
    """Every wait of a run, in seconds. None waits for ever."""

    beat_every_s: float = 1.0
    report_flush_s: float = 0.5
    unreachable_after_s: float = 10.0
    lost_after_s: float = 60.0
    lost_alone_after_s: float = 600.0
    start_timeout_s: float = 60.0
    import_timeout_s: float = 600.0
    stop_grace_s: float = 5.0
    restart_grace_s: float = 1.0
    shutdown_deadline_s: float = 30.0
    checkpoint_timeout_s: float = 600.0
    hook_timeout_s: float = 30.0
    adopt_within_s: float = 60.0
    coalesce_s: float = 5.0
    resize_wait_s: float = 60.0
    collective_timeout_s: float | None = None
    progress_timeout_s: float | None = None
    final_wait_s: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _check_seconds(name, getattr(self, name))
