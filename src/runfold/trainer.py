"""The Python API: `Trainer(function, …).fit()` runs a job to its end and returns its result."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from runfold.blocking import run_blocking
from runfold.errors import UsageError
from runfold.events.config import BackendConfig, ScalingConfig
from runfold.events.job import Job
from runfold.jobs import complete
from runfold.locate import STORAGE_FOLDER, find
from runfold.observers import Observers, Watching, finished
from runfold.parcels import Parcels, named_callbacks
from runfold.pickling import pickle_function
from runfold.progress import progress
from runfold.result import result_of
from runfold.run import Order, run_job
from runfold.runconfig import RunConfig
from runfold.unheard import print_lasting
from runfold.validation import ValidationConfig
from runfold.workers.payload import pickle_any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runfold.events.state import RunState
    from runfold.follow import Onlooker
    from runfold.locate import Where
    from runfold.result import Result
    from runfold.run import Outcome
    from runfold.workers.data import DataConfig


class Trainer:
    """Trains `train_loop_per_worker` on a group of ranks.

    `train_loop_per_worker` is a function of no argument or of the configuration, or a reference: `module:function` or
    `path/file.py:function`. A function is pickled with cloudpickle and sent through the broker's object store; only
    ranks unpickle it.

    `datasets` by name: any sequence, iterable, data frame, Ray dataset, or a callable of no argument that returns one
    and is called in the ranks; `runfold.get_dataset_shard(name)` there is a rank's share, by `dataset_config`.
    `validation_config` says how checkpoints are validated that are reported with `validation=`.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object] | str,
        *,
        train_loop_config: Mapping[str, object] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        backend_config: BackendConfig | None = None,
        datasets: Mapping[str, object] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: object | None = None,
        resume_from_checkpoint: object | None = None,
    ) -> None:
        if metadata is not None:
            raise DeprecationWarning("Trainer(metadata=…) is gone: give what the ranks need as train_loop_config")
        if resume_from_checkpoint is not None:
            raise DeprecationWarning(
                "Trainer(resume_from_checkpoint=…) is gone: a trainer with the same name and storage_path continues, "
                "or give the checkpoint's path as train_loop_config"
            )
        for name, value, kind in (
            ("scaling_config", scaling_config, ScalingConfig),
            ("run_config", run_config, RunConfig),
            ("backend_config", backend_config, BackendConfig),
            ("validation_config", validation_config, ValidationConfig),
        ):
            _check_class(name, value, kind)
        self._function = train_loop_per_worker
        self._run_config = run_config or RunConfig()
        self._parcels = parcels = Parcels()
        if isinstance(train_loop_per_worker, str):
            entrypoint = train_loop_per_worker
        else:
            _check_function(train_loop_per_worker)
            entrypoint = parcels.add(pickle_function(train_loop_per_worker))
        given = self._run_config.storage_filesystem
        self._filesystem = None if given is None else parcels.add(pickle_any(given))
        self._callbacks = [*named_callbacks(), *self._run_config.callbacks]
        self._position = -1
        self._hooks = parcels.hooks(self._run_config.callbacks)
        self._datasets = parcels.datasets(datasets, dataset_config)
        self._validation = None if validation_config is None else parcels.validation(validation_config)
        scaling = scaling_config or ScalingConfig()
        self._locally = scaling.max_workers == 0
        if self._locally:
            scaling = ScalingConfig()
        self._job = self._make_job(entrypoint, train_loop_config or {}, scaling, backend_config)

    @classmethod
    def restore(cls, *_: object, **__: object) -> NoReturn:
        """Say what to do instead."""
        raise DeprecationWarning("Trainer.restore is gone: a trainer with the same name and storage_path continues")

    @classmethod
    def can_restore(cls, *_: object, **__: object) -> NoReturn:
        """Say what to do instead."""
        raise DeprecationWarning("Trainer.can_restore is gone: a trainer with the same name and storage_path continues")

    @property
    def run_id(self) -> str:
        """The id of the run; each call of `fit` on a service is the same run."""
        return str(self._job.id)

    def fit(self) -> Result:
        """Run to the end and return the result; with `num_workers=0` in this process, errors raised as they are.

        Progress, and what the ranks print, go to standard error: standard output is the caller's.

        Raises:
            TrainingFailedError: the run ended ERRORED; the error carries `.result`.
            RunAbortedError: it ended ABORTED, by request or by an interrupt (SIGINT, SIGTERM); it carries `.result`.
            JobRefusedError: the controller refused the job.
            UnreachableError: the service that was named does not answer.
        """
        where = find(self._run_config.data_dir, self._run_config.server)
        result = self._run(where)
        if result.error is not None:
            result.error.result = result
            raise result.error
        return result

    def _run(self, where: Where) -> Result:
        given = self._run_config
        observers = Observers(
            self._callbacks,
            where.data_dir / STORAGE_FOLDER,
            failure_limit=given.callback_failure_limit,
            position=self._position,
            filesystem=given.storage_filesystem,
        )
        with progress(sys.stderr) as shown:
            if not self._callbacks:
                return self._ended(where, shown, shown.printed)[0]
            watching = Watching(observers, shown)
            try:
                result, state = self._ended(where, watching, shown.printed)
                if self._position < state.n:
                    watching.finish(finished(state, result))
            finally:
                watching.close()
        self._position = observers.position
        result.callback_failures.update(observers.failures)
        return result

    def _ended(self, where: Where, onlooker: Onlooker, printed: Callable[[str], None]) -> tuple[Result, RunState]:
        if not self._locally:
            outcome = self._go(where, onlooker, printed)
            return self._done(where, outcome), outcome.state
        from runfold.local import LocalOrder, run_locally

        return run_locally(
            LocalOrder(
                job=self._job,
                function=self._function,
                where=where,
                onlooker=onlooker,
                blobs=self._parcels.blobs,
                datasets=self._parcels.blob(self._datasets),
                filesystem=self._run_config.storage_filesystem,
                callbacks=self._callbacks,
            )
        )

    def _go(self, where: Where, onlooker: Onlooker, printed: Callable[[str], None]) -> Outcome:
        blobs = tuple(self._parcels.blobs)
        order = Order(
            job=self._job,
            where=where,
            onlooker=onlooker,
            say=_say,
            blobs=blobs,
            keep_returned=True,
            printed=printed,
        )
        return run_blocking(run_job(order))

    def _done(self, where: Where, outcome: Outcome) -> Result:
        filesystem = self._run_config.storage_filesystem
        result = result_of(outcome.state, blob=outcome.returned, where=where, filesystem=filesystem)
        result.keep(outcome.returned)
        return result

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
            "storage_filesystem": self._filesystem,
            "validation": self._validation,
            "hooks": self._hooks,
            "datasets": self._datasets,
            "metrics_ranks": given.metrics_ranks,
            "warm_restarts": given.warm_restarts,
            "pool": given.pool,
            "env": given.rank_env,
            "runtime_env": given.runtime_env,
            "secret_env": given.secret_env,
            "working_dir": str(Path.cwd()),
            "labels": given.labels,
            "priority": given.priority,
        }
        return complete(fields)


def _check_class(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{name}: must be a runfold.{kind.__name__}, not {type(value).__name__}")


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
    print_lasting(text, sys.stderr)
