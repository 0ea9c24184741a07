"""The Python API: `Trainer(function, …).fit()` runs a job to its end and returns its result."""

from __future__ import annotations

import hashlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runfold.blocking import run_blocking
from runfold.errors import UsageError
from runfold.events.config import BackendConfig, CheckpointConfig, Config, FailureConfig, ScalingConfig, Timeouts
from runfold.events.job import Job
from runfold.jobs import complete
from runfold.locate import STORAGE_FOLDER, find
from runfold.pickling import pickle_function
from runfold.progress import progress
from runfold.result import result_of
from runfold.run import Order, run_job
from runfold.workers.payload import pickle_any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from runfold.events.base import Json
    from runfold.result import Result

_BLOB_PREFIX: Final = "blob:sha256:"


class RunConfig(Config, frozen=True, kw_only=True):
    """What a run is called, where it keeps things, how it deals with failures.

    `name` names the run (its id is the name and a short suffix), and its directory within `storage_path`: a run that
    shares both with an earlier one continues it. `storage_path` is a path or any URL that fsspec knows, to which
    `storage_options` go; with `storage_filesystem`, a filesystem of fsspec, it is a path on that. `env` is set in the
    ranks; `secret_env` names variables that they take from the supervisor's environment and that are never written
    down. `data_dir` and `server` say where the service is looked for, instead of RUNFOLD_DATA and RUNFOLD_SERVER.
    """

    name: str | None = None
    storage_path: str | PathLike[str] | None = None
    storage_filesystem: object | None = None
    storage_options: dict[str, Json] = {}
    failure_config: FailureConfig = FailureConfig()
    checkpoint_config: CheckpointConfig = CheckpointConfig()
    timeouts: Timeouts = Timeouts()
    env: dict[str, str] = {}
    secret_env: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    metrics_ranks: str = "zero"
    pool: str = "local"
    priority: int = 0
    data_dir: str | PathLike[str] | None = None
    server: str | None = None

    def __post_init__(self) -> None:
        for name, kind in (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}: must be a {kind.__name__}, not {type(getattr(self, name)).__name__}")


class Trainer:
    """Trains `train_loop_per_worker` on a group of ranks.

    `train_loop_per_worker` is a function of no argument or of the configuration, or a reference: `module:function` or
    `path/file.py:function`. A function is pickled with cloudpickle and sent through the broker's object store; only
    ranks unpickle it.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object] | str,
        *,
        train_loop_config: Mapping[str, object] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        backend_config: BackendConfig | None = None,
    ) -> None:
        self._function = train_loop_per_worker
        self._run_config = run_config or RunConfig()
        self._blob: bytes | None = None
        if isinstance(train_loop_per_worker, str):
            entrypoint = train_loop_per_worker
        else:
            _check_function(train_loop_per_worker)
            self._blob = pickle_function(train_loop_per_worker)
            entrypoint = _blob_name(self._blob)
        given = self._run_config.storage_filesystem
        self._filesystem = None if given is None else pickle_any(given)
        scaling = scaling_config or ScalingConfig()
        self._locally = scaling.max_workers == 0
        if self._locally:
            scaling = ScalingConfig()
        self._job = self._make_job(entrypoint, train_loop_config or {}, scaling, backend_config)

    @property
    def run_id(self) -> str:
        """The id of the run; each call of `fit` on a service is the same run."""
        return str(self._job.id)

    def fit(self) -> Result:
        """Run to the end and return the result; with `num_workers=0` in this process, errors raised as they are.

        Raises:
            TrainingFailedError: the run ended ERRORED; the error carries `.result`.
            RunAbortedError: it ended ABORTED, by request or by an interrupt (SIGINT, SIGTERM); it carries `.result`.
            NotAcceptedError: the controller refused the job.
            UnreachableError: the service that was named does not answer.
        """
        if self._locally:
            from runfold.local import run_locally

            given = self._run_config
            storage_dir = find(given.data_dir, given.server).data_dir / STORAGE_FOLDER
            return run_locally(self._job, self._function, storage_dir, given.storage_filesystem)
        where = find(self._run_config.data_dir, self._run_config.server)
        with progress() as onlooker:
            order = Order(
                job=self._job, where=where, onlooker=onlooker, say=_say, blobs=self._blobs(), keep_returned=True
            )
            outcome = run_blocking(run_job(order))
        result = result_of(outcome.state, blob=outcome.returned, where=where)
        if result.error is not None:
            result.error.result = result
            raise result.error
        return result

    def _blobs(self) -> tuple[bytes, ...]:
        return tuple(blob for blob in (self._blob, self._filesystem) if blob is not None)

    def _make_job(
        self,
        entrypoint: str,
        config: Mapping[str, object],
        scaling: ScalingConfig,
        backend: BackendConfig | None,
    ) -> Job:
        given = self._run_config
        fields: dict[str, object] = {
            "name": given.name or _name(self._function),
            "entrypoint": entrypoint,
            "config": config,
            "scaling": scaling,
            "failure": given.failure_config,
            "checkpoint": given.checkpoint_config,
            "timeouts": given.timeouts,
            "backend": backend or BackendConfig(),
            "storage_path": None if given.storage_path is None else str(given.storage_path),
            "storage_name": given.name,
            "storage_options": given.storage_options,
            "storage_filesystem": None if self._filesystem is None else _blob_name(self._filesystem),
            "metrics_ranks": given.metrics_ranks,
            "pool": given.pool,
            "env": given.env,
            "secret_env": given.secret_env,
            "working_dir": str(Path.cwd()),
            "labels": given.labels,
            "priority": given.priority,
        }
        return complete(fields)


def _blob_name(blob: bytes) -> str:
    return _BLOB_PREFIX + hashlib.sha256(blob).hexdigest()


def _check_function(function: object) -> None:
    if not callable(function):
        raise UsageError(f"train_loop_per_worker: must be a function or a reference to one, not {function!r}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return  # some callables written in C do not tell
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(required) > 1:
        names = ", ".join(p.name for p in required)
        raise UsageError(
            f"train_loop_per_worker: needs {len(required)} arguments ({names}); it may need one, the config"
        )


def _name(function: Callable[..., object] | str) -> str:
    return "" if isinstance(function, str) else str(getattr(function, "__name__", "run")).strip("_<>")


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201  # the Python API speaks to whoever called it
