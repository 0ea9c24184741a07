"""The result of a run that has ended, in whichever state: told by its log, or by its storage alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NoReturn

from runfold.blocking import run_blocking
from runfold.events.edges import state_name
from runfold.events.facts import Reported
from runfold.events.transitions import CheckpointCommitted, CheckpointValidated
from runfold.events.values import unpack
from runfold.folding import state_of
from runfold.keepsake import keep_result, storage_of
from runfold.locate import STORAGE_FOLDER, find
from runfold.outcome import error_of, named_blob
from runfold.sources import open_history
from runfold.workers.payload import unpickled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    import pandas as pd

    from runfold.errors import RunAbortedError, TrainingFailedError
    from runfold.events.base import Json
    from runfold.events.state import RunState
    from runfold.locate import Where
    from runfold.replay.history import History
    from runfold.workers.checkpoint import Checkpoint
    from runfold.workers.storage import Storage

BestCheckpoints = list[tuple["Checkpoint", "dict[str, Json]"]]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run did. It can be had of every terminal state, for as long as the run's log, archive or storage is kept.

    `state` is finished, errored or aborted, and `reason` says why. `metrics` is rank 0's last report, `return_value`
    what rank 0 returned. `error` is None for a finished run. `checkpoint` is the latest; `path` where all of them are.
    Two results are equal when they tell the same of the same run.
    """

    run: str
    state: str
    reason: str
    metrics: dict[str, Json] | None
    return_value: object
    error: TrainingFailedError | RunAbortedError | None
    attempts: int
    duration_s: float
    path: str | None = None
    checkpoint: Checkpoint | None = None
    where: Where | None = field(default=None, repr=False)
    callback_failures: dict[str, int] = field(default_factory=dict, repr=False)
    _storage: Storage | None = field(default=None, repr=False)
    _history: Callable[[], History] | None = field(default=None, repr=False)

    def returning(self, value: object) -> Result:
        """Return this result with what the function has returned itself, where that is at hand."""
        return replace(self, return_value=value)

    @classmethod
    def from_path(
        cls,
        path: str | PathLike[str],
        filesystem: object | None = None,
        storage_options: dict[str, Json] | None = None,
    ) -> Result:
        """Return the result of the run that last ended in a storage directory, from what is there alone.

        Raises `RuntimeError` when no run of runfold has kept anything there.
        """
        from runfold.stored import result_at

        return result_at(path, filesystem, storage_options)

    # --- checkpoints

    @property
    def filesystem(self) -> object | None:
        """The filesystem of fsspec that `path` is on."""
        return self._storage.files.filesystem if self._storage is not None else None

    @property
    def best_checkpoints(self) -> BestCheckpoints:
        """The best checkpoints, as many as are kept, the best last, each with its metrics."""
        return [] if self._history is None else best_of(self._history(), self._storage)

    def get_best_checkpoint(self, metric: str, mode: Literal["max", "min"]) -> Checkpoint | None:
        """Return the kept checkpoint with the best value of a metric; `a/b` is `b` within `a`.

        Raises:
            RuntimeError: there is no checkpoint, or none has this metric.
            ValueError: the mode is neither "max" nor "min".
        """
        if mode not in ("max", "min"):
            raise ValueError(f"mode: must be 'max' or 'min', not {mode!r}")
        found = [(checkpoint, _nested(metrics, metric)) for checkpoint, metrics in self.best_checkpoints]
        scored = [(checkpoint, value) for checkpoint, value in found if isinstance(value, int | float)]
        if not scored:
            raise RuntimeError(f"no checkpoint of {self.run} has the metric {metric!r}")
        pick = max if mode == "max" else min
        return pick(scored, key=lambda one: one[1])[0]

    @property
    def failed_validations(self) -> dict[str, str]:
        """Which checkpoints' validations failed or timed out, by name, and why."""
        found: dict[str, str] = {}
        for entry in () if self._history is None else self._history().entries:
            for item in entry.transitions:
                if isinstance(item, CheckpointValidated) and item.outcome != "validated":
                    found[item.name] = item.reason
        return found

    # --- tables: pandas is imported here and nowhere else on the way to a result

    @property
    def metrics_dataframe(self) -> pd.DataFrame:
        """Every report with metrics, one a row, with its attempt, rank, index and time; read when asked for."""
        import pandas as pd

        return pd.DataFrame(list(self.reports()))

    @property
    def checkpoints_dataframe(self) -> pd.DataFrame:
        """Every checkpoint that was committed, one a row, with its metrics and what became of it."""
        import pandas as pd

        return pd.DataFrame([] if self._history is None else list(_checkpoint_rows(self._history())))

    def reports(self) -> Iterator[dict[str, Json]]:
        """Yield every report with metrics, in the order of the log."""
        for entry in () if self._history is None else self._history().entries:
            for item in entry.inputs:
                if isinstance(item, Reported) and item.metrics is not None:
                    place: dict[str, Json] = {"attempt": item.attempt, "rank": item.rank, "index": item.index}
                    yield _beside({**place, "time_s": entry.t}, _unpacked(item.metrics))

    def keep(self, returned: bytes | None = None) -> None:
        """Put the log into the run's storage, so that `from_path` tells the same; what goes wrong is only logged."""
        if self._history is not None:
            keep_result(self._history, self._storage, returned)

    @property
    def config(self) -> NoReturn:
        """Not there any more: the peer's old name."""
        raise DeprecationWarning("Result.config is gone; what the run was asked for is in its log: runfold.load(run)")

    def __eq__(self, other: object) -> bool:
        """Whether another result tells the same of the same run."""
        return isinstance(other, Result) and self._told() == other._told()

    __hash__ = None  # type: ignore[assignment]  # what it holds can be changed

    def _told(self) -> tuple[object, ...]:
        best = [(checkpoint.path, metrics) for checkpoint, metrics in self.best_checkpoints]
        latest = self.checkpoint.path if self.checkpoint is not None else None
        error = None if self.error is None else (type(self.error), str(self.error))
        said = (self.run, self.state, self.reason, repr(self.metrics), self.return_value)
        return (*said, self.attempts, self.duration_s, error, self.path, latest, repr(best), repr(list(self.reports())))


def get_result(run: str, *, data: str | PathLike[str] | None = None, server: str | None = None) -> Result:
    """Return the result of an ended run from its log alone: that of the service, or of the archive.

    Raises:
        ValueError: the run has not ended.
        runfold.replay.errors.NotFound: nobody knows such a run.
    """
    where = find(data, server)
    history = run_blocking(open_history(where, run))
    state = state_of(history)
    if not state.terminal:
        raise ValueError(f"{run} has not ended: it is {state_name(state.phase)}")
    blob = None
    if state.return_blob is not None:
        blob = run_blocking(named_blob(where, run, state.return_blob))
    return result_of(state, blob=blob, where=where, history=lambda: history)


def result_of(
    state: RunState,
    *,
    blob: bytes | None = None,
    where: Where | None = None,
    storage: Storage | None = None,
    filesystem: object | None = None,
    history: Callable[[], History] | None = None,
) -> Result:
    """Return the result of an ended run; `blob` is what `state.return_blob` names, `where` finds its log again.

    `storage` is where its checkpoints are, unless that can be told from the job (and `filesystem`, the user's own).
    """
    if storage is None and where is not None:
        storage = storage_of(state.job, where.data_dir / STORAGE_FOLDER, filesystem)
    if history is None and where is not None:
        history = _Once(where, state.run)
    newest = state.checkpoint
    return Result(
        run=state.run,
        state=state_name(state.phase),
        reason=state.phase.reason,
        metrics=None if state.metrics is None else _unpacked(state.metrics),
        return_value=unpickled(blob) if blob is not None else unpack(state.return_value),
        error=error_of(state),
        attempts=state.attempt,
        duration_s=state.t,
        path=storage.url if storage is not None else state.job.storage_path,
        checkpoint=storage.checkpoint(newest.name) if storage is not None and newest is not None else None,
        where=where,
        _storage=storage,
        _history=history,
    )


class _Once:
    """Reads a run's log when it is first asked for."""

    def __init__(self, where: Where, run: str) -> None:
        self._where = where
        self._run = run
        self._read: History | None = None

    def __call__(self) -> History:
        if self._read is None:
            self._read = run_blocking(open_history(self._where, self._run))
        return self._read


# --- what a log says of checkpoints


def best_of(history: History, storage: Storage | None) -> BestCheckpoints:
    """Return the best checkpoints that a log says are kept, with their metrics."""
    if storage is None or not history.links:
        return []
    state = state_of(history)
    metrics = metrics_by_name(history)
    keep = state.job.checkpoint.num_to_keep
    best = state.checkpoints.kept if keep is None else state.checkpoints.kept[-keep:]
    return [(storage.checkpoint(one.name), metrics.get(one.name) or _stored_metrics(storage, one.name)) for one in best]


def metrics_by_name(history: History) -> dict[str, dict[str, Json]]:
    """Return the metrics of every checkpoint committed in a log: those reported, then those of its validation."""
    found: dict[str, dict[str, Json]] = {}
    for entry in history.entries:
        for item in entry.transitions:
            if isinstance(item, CheckpointCommitted):
                found[item.name] = _unpacked(item.metrics or {})
            elif isinstance(item, CheckpointValidated) and item.metrics is not None:
                found.setdefault(item.name, {}).update(_unpacked(item.metrics))
    return found


def _stored_metrics(storage: Storage, name: str) -> dict[str, Json]:
    """Return the metrics of a checkpoint that an earlier run has left: its own log is not at hand."""
    from runfold.workers.given import metrics_in

    try:
        return metrics_in(storage, name)
    except OSError:
        return {}


def _checkpoint_rows(history: History) -> Iterator[dict[str, Json]]:
    state = state_of(history)
    kept_now = {one.name: one for one in state.checkpoints.kept}
    metrics = metrics_by_name(history)
    for entry in history.entries:
        for item in entry.transitions:
            if isinstance(item, CheckpointCommitted):
                one = kept_now.get(item.name)
                row: dict[str, Json] = {
                    "name": item.name,
                    "index": item.index,
                    "attempt": item.attempt,
                    "time_s": entry.t,
                    "size_bytes": item.size_bytes,
                    "kept": one is not None,
                    "status": one.status if one is not None else None,
                }
                yield _beside(row, metrics[item.name])


def _beside(place: dict[str, Json], metrics: dict[str, Json]) -> dict[str, Json]:
    """Return a row; a metric that is called like a column of ours is `metric.<name>`, as in exported tables."""
    return place | {f"metric.{name}" if name in place else name: value for name, value in metrics.items()}


def _unpacked(packed: dict[str, Json]) -> dict[str, Json]:
    return {name: unpack(value) for name, value in packed.items()}


def _nested(metrics: dict[str, Json], path: str) -> Json:
    if path in metrics:
        return metrics[path]
    value: Json = metrics
    for part in path.split("/"):
        value = value.get(part) if isinstance(value, dict) else None
    return value
