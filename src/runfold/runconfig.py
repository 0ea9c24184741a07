"""What a run is called and how it is treated: the part of a trainer's arguments that is not the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Final, cast

from runfold.events.base import Json
from runfold.events.config import CheckpointConfig, Config, FailureConfig, Timeouts, check_flags
from runfold.events.pools import LOCAL_POOL
from runfold.workers.callbacks import Callback

GONE: Final = {
    "sync_config": "checkpoints are uploaded as they are reported; see checkpoint_config",
    "verbose": "`runfold watch` and `runfold replay --full` show as much as is wanted",
    "stop": "return from the training function, or ask for it: `runfold stop RUN --at-checkpoint`",
    "progress_reporter": "a callback's after_report is told of every report",
    "log_to_file": "what ranks print is kept; see `runfold logs`",
    "logging_config": "ranks log as Python's logging is set in them; all they print is kept; see `runfold logs`",
}
"""Fields of the peer that say so when they are set, and what to use instead."""


class RunConfig(Config, frozen=True, kw_only=True):
    """What a run is called, where it keeps things, how it deals with failures.

    `name` names the run (its id is the name and a short suffix), and its directory within `storage_path`: a run that
    shares both with an earlier one continues it. `storage_path` is a path or any URL that fsspec knows, to which
    `storage_options` go; with `storage_filesystem`, a filesystem of fsspec, it is a path on that. `env` is set in the
    ranks (`worker_runtime_env`, the peer's name for it, may hold `env_vars`, and on a Ray cluster what else is prepared
    on each node); `secret_env` names variables that they take from the supervisor's environment and that are never
    written down. `data_dir` and `server` say where the service is looked for, instead of RUNFOLD_DATA and
    RUNFOLD_SERVER.

    `callbacks` are told of the run, here, and called in its ranks and its hook process, after those that
    RUNFOLD_CALLBACKS names; one whose hooks have raised `callback_failure_limit` times is told no more.
    """

    name: str | None = None
    storage_path: str | PathLike[str] | None = None
    storage_filesystem: object | None = None
    storage_options: dict[str, Json] = {}
    failure_config: FailureConfig = FailureConfig()
    checkpoint_config: CheckpointConfig = CheckpointConfig()
    callbacks: Sequence[object] = ()
    callback_failure_limit: int = 3
    timeouts: Timeouts = Timeouts()
    env: dict[str, str] = {}
    secret_env: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    metrics_ranks: str = "zero"
    warm_restarts: bool = True
    pool: str = LOCAL_POOL
    priority: int = 0
    data_dir: str | PathLike[str] | None = None
    server: str | None = None
    worker_runtime_env: dict[str, object] | None = None
    logging_config: object | None = None
    sync_config: object | None = None
    verbose: object | None = None
    stop: object | None = None
    progress_reporter: object | None = None
    log_to_file: object | None = None

    def __post_init__(self) -> None:
        self._check_the_peers()
        check_flags(self)
        for name, kind in (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}: must be a {kind.__name__}, not {type(getattr(self, name)).__name__}")
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ValueError(f"callbacks: each must be a runfold.Callback, not {type(callback).__name__}")
        if self.callback_failure_limit < 1:
            raise ValueError(f"callback_failure_limit: must be at least 1, not {self.callback_failure_limit}")

    @property
    def rank_env(self) -> dict[str, str]:
        """What is set in the ranks: `env` over the `env_vars` of `worker_runtime_env`."""
        given = (self.worker_runtime_env or {}).get("env_vars")
        if not isinstance(given, Mapping):
            return self.env
        return {**{name: str(value) for name, value in cast("Mapping[str, object]", given).items()}, **self.env}

    @property
    def runtime_env(self) -> dict[str, object]:
        """What a Ray cluster prepares on each node: all of `worker_runtime_env` but its variables."""
        return {name: value for name, value in (self.worker_runtime_env or {}).items() if name != "env_vars"}

    def _check_the_peers(self) -> None:
        """Refuse what the peer has and runfold has not, saying what to use instead."""
        for name, instead in GONE.items():
            if getattr(self, name) is not None:
                raise DeprecationWarning(f"RunConfig({name}=…) is gone: {instead}")
        for name in self.worker_runtime_env or {}:
            if name != "env_vars" and self.pool == LOCAL_POOL:
                raise ValueError(
                    f"worker_runtime_env: {name!r} is not done by runfold on its own machine: ranks have what the "
                    "supervisor has; only env_vars is taken, as RunConfig(env=…) is. A Ray cluster does it: pool='ray'"
                )
