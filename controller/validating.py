"""Validations: which checkpoint is validated next, what came of it, and what the end of the run waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from runfold.events.base import relative
from runfold.events.checkpoints import score_of
from runfold.events.failures import ErrorInfo
from runfold.events.state import ShuttingDown
from runfold.events.tasks import VALIDATION, Task, find_task, validation_id
from runfold.events.transitions import CheckpointValidated, TaskOrdered

if TYPE_CHECKING:
    from runfold.events.base import Cause, Json
    from runfold.events.checkpoints import Kept
    from runfold.events.config import ValidationSpec
    from runfold.events.state import RunState
    from runfold.events.tasks import OpenTask, TaskEnd
    from runfold.events.transitions import AnyTransition


def pending(state: RunState) -> list[Kept]:
    """Return the checkpoints whose validation is not over, in the order in which they were reported."""
    return sorted((one for one in state.checkpoints.kept if one.validating), key=lambda one: (one.index, one.attempt))


def validate(state: RunState) -> tuple[AnyTransition, ...]:
    """Order the next validation, while fewer than `max_concurrent` are under way."""
    spec = state.job.validation
    if spec is None or aborting(state) or state.supervisor not in state.sources:
        return ()
    waiting = [one for one in pending(state) if find_task(state.tasks, validation_id(one.name)) is None]
    under_way = sum(one.task.kind == VALIDATION for one in state.tasks)
    if not waiting or under_way >= spec.max_concurrent:
        return ()
    return (_ordered(state, spec, waiting[0]),)


def aborting(state: RunState) -> bool:
    """Whether the run is about to end as ABORTED: what was to be validated stays so, for a later run."""
    phase = state.phase
    return (state.ending is not None and state.ending.next == "aborted") or (
        isinstance(phase, ShuttingDown) and phase.next == "aborted"
    )


def _ordered(state: RunState, spec: ValidationSpec, one: Kept) -> TaskOrdered:
    wish = one.wish
    own = wish is not None and wish.own
    timeout_s = wish.timeout_s if wish is not None and own else spec.timeout_s
    given: dict[str, Json] = {**spec.arguments, **(wish.arguments if wish is not None else {})}
    task = Task(
        id=validation_id(one.name),
        kind=VALIDATION,
        arguments={"name": one.name, "arguments": given},
        deadline_t=None if timeout_s is None else state.t + timeout_s,
    )
    limit = f", for at most {timeout_s:g} s" if timeout_s is not None else ""
    cause = relative(state.checkpoints.last or state.phase.cause, state.n)
    return TaskOrdered(task=task, cause=cause, reason=f"{one.name} is to be validated{limit}")


def judged(state: RunState, one: OpenTask, end: TaskEnd) -> CheckpointValidated:
    """Return what the end of a validation says of its checkpoint."""
    name = str(one.task.arguments.get("name"))
    cause = relative(end.cause, state.n)
    if end.outcome == "timed_out":
        return _said(state, name, "timed_out", cause, "no result in time")
    if end.outcome == "failed" or not isinstance(end.value, dict):
        error = end.error or ErrorInfo(type="TypeError", message="it returned no dict of metrics", kind="user")
        return _said(state, name, "failed", cause, error.headline, error=error)
    kept = next((kept for kept in state.checkpoints.kept if kept.name == name), None)
    before = kept.score if kept is not None else None
    score, wrong = score_of(end.value, state.job.checkpoint)
    # The metrics reported with it stand unless the validation found the same ones.
    score = before if wrong.endswith("is missing: it ranks worst") else score
    moved = f"; its score is now {abs(score):g}" if score is not None and score != before else ""
    return _said(state, name, "validated", cause, f"{len(end.value)} metrics{moved}", metrics=end.value, score=score)


def _said(
    state: RunState,
    name: str,
    outcome: Literal["validated", "failed", "timed_out"],
    cause: Cause,
    why: str,
    *,
    metrics: dict[str, Json] | None = None,
    score: float | None = None,
    error: ErrorInfo | None = None,
) -> CheckpointValidated:
    kept = next((kept for kept in state.checkpoints.kept if kept.name == name), None)
    if outcome != "validated" and kept is not None:
        score = kept.score
    words = {"validated": "validated", "failed": "its validation failed", "timed_out": "its validation timed out"}
    return CheckpointValidated(
        name=name,
        outcome=outcome,
        metrics=metrics,
        score=score,
        error=error,
        cause=cause,
        reason=f"{name}: {words[outcome]}: {why}",
    )


def await_final(state: RunState, phase: ShuttingDown) -> tuple[AnyTransition, ...] | None:
    """Return what the end of the run has to do about validations: wait (nothing), give up; None when all is done.

    They are awaited for at most `final_wait_s`, and not at all where nobody can do them.
    """
    left = pending(state)
    if not left or phase.next == "aborted" or state.job.validation is None:
        return None
    limit_s = state.job.timeouts.final_wait_s
    over = next((fired for fired in state.fired if fired.timer == "final"), None)
    if limit_s is None or over is None:
        return ()
    cause = relative(over.cause, state.n)
    why = f"the run ends after timeouts.final_wait_s ({limit_s:g} s)"
    return (_said(state, left[0].name, "timed_out", cause, why),)
