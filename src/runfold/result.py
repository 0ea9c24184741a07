"""The result of a run that has ended, in whichever state, as its log tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runfold.blocking import run_blocking
from runfold.errors import (
    ControllerError,
    PreemptionError,
    RunAbortedError,
    TrainingFailedError,
    WorkerGroupError,
)
from runfold.events.facts import Reported
from runfold.events.state import Aborted, Errored
from runfold.events.values import unpack
from runfold.explain import failure_text
from runfold.locate import find
from runfold.sources import open_history
from runfold.workers.payload import unpickled

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from runfold.events.base import Json
    from runfold.events.state import RunState
    from runfold.locate import Where


@dataclass(frozen=True)
class Result:
    """What a run did. It can be had of every terminal state, for as long as the run's log or archive is kept.

    `state` is finished, errored or aborted, and `reason` says why. `metrics` is rank 0's last report, `return_value`
    what rank 0 returned. `error` is None for a finished run. `checkpoint` and `best_checkpoints` are empty in this
    version.
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
    checkpoint: object | None = None
    best_checkpoints: tuple[object, ...] = ()
    where: Where | None = field(default=None, repr=False)

    @property
    def metrics_dataframe(self) -> pd.DataFrame:
        """Every report of rank 0, one a row, with its attempt, index and time; read from the archive when asked for."""
        import pandas as pd

        return pd.DataFrame(list(self.reports()))

    def reports(self) -> Iterator[dict[str, Json]]:
        """Yield every report with metrics, in the order of the log."""
        history = run_blocking(open_history(self.where or find(), self.run))
        for entry in history.entries:
            for item in entry.inputs:
                if isinstance(item, Reported) and item.metrics is not None:
                    place: dict[str, Json] = {"attempt": item.attempt, "rank": item.rank, "index": item.index}
                    yield {**place, "time_s": entry.t, **{name: unpack(value) for name, value in item.metrics.items()}}


def result_of(state: RunState, *, blob: bytes | None = None, where: Where | None = None) -> Result:
    """Return the result of an ended run; `blob` is what `state.return_blob` names, `where` finds its log again."""
    returned = unpickled(blob) if blob is not None else unpack(state.return_value)
    return Result(
        run=state.run,
        state=type(state.phase).__name__.lower(),
        reason=state.phase.reason,
        metrics=None if state.metrics is None else {name: unpack(value) for name, value in state.metrics.items()},
        return_value=returned,
        error=_error_of(state),
        attempts=state.attempt,
        duration_s=state.t,
        path=state.job.storage_path,
        where=where,
    )


def _error_of(state: RunState) -> TrainingFailedError | RunAbortedError | None:
    if isinstance(state.phase, Aborted):
        return RunAbortedError(f"{state.run} was aborted: {state.phase.reason}")
    if not isinstance(state.phase, Errored):
        return None
    failure = state.phase.failure or state.failure
    if failure is None:
        return ControllerError(f"{state.run} errored: {state.phase.reason}")
    message = f"{failure_text(failure)}\n{state.run} errored: {state.phase.reason}"
    if failure.kind == "preempted":
        return PreemptionError(message)
    if failure.rank is None:
        return ControllerError(message)
    failures = {other.rank: failure_text(other) for other in (*state.others, failure) if other.rank is not None}
    return WorkerGroupError(message, failures)
