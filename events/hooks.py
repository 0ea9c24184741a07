"""Where a run is with its gates: a question is a task, its answer the end of that task (see `gates.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.base import Cause, Json, Value, absolute
from runfold.events.edges import state_name
from runfold.events.failures import ErrorInfo
from runfold.events.gates import (
    ABORT_GONE,
    CONTEXT,
    FAILURE,
    GATES,
    GROUP_GONE,
    REPLICA_SHUTDOWN,
    REPLICA_START,
    REPORT,
    RESIZE,
    START,
    STATE,
)
from runfold.events.limits import HOOKS_DUE_MAX_COUNT
from runfold.events.replicas import members, replica_size
from runfold.events.transitions import (
    AttemptStarted,
    ControllerChanged,
    FailureDecided,
    GroupLaidOut,
    ReplicaGroupReplaced,
    StateChanged,
)

if TYPE_CHECKING:
    from runfold.events.state import RunState
    from runfold.events.tasks import OpenTask
    from runfold.events.transitions import AnyTransition


class HookAnswer(Value, frozen=True, kw_only=True):
    """What a gate that the run waited for said: a value, or that it failed, and why."""

    cause: Cause
    value: Json = None
    error: ErrorInfo | None = None


class HookDue(Value, frozen=True, kw_only=True):
    """A question to a gate that the run does not wait for, not asked yet."""

    hook: str
    cause: Cause
    arguments: dict[str, Json] = {}


class Hooks(Value, frozen=True, kw_only=True):
    """Where the run is with its gates.

    `asked` counts questions. `answers`: by hook, until what was asked about is decided. `reports`: so many had come
    when `after_report` was asked last. `gone`: the last attempt whose group is told to be gone.
    """

    asked: int = 0
    answers: dict[str, HookAnswer] = {}
    due: tuple[HookDue, ...] = ()
    reports: int = 0
    gone: int = 0


# --- what transitions change of them


def asked(state: RunState, hook: str) -> RunState:
    """Count a question; what was due is so no more."""
    hooks = state.hooks
    due = list(hooks.due)
    first = next((one for one in due if one.hook == hook), None)
    if first is not None:
        due.remove(first)
    reports = state.reports if hook == REPORT else hooks.reports
    gone = state.attempt if hook in (GROUP_GONE, ABORT_GONE) else hooks.gone
    return replace(state, hooks=replace(hooks, asked=hooks.asked + 1, due=tuple(due), reports=reports, gone=gone))


def answered(state: RunState, found: OpenTask, cause: Cause) -> RunState:
    """Keep the answer of a gate that the run waits for."""
    hook, end = str(found.task.arguments.get("hook", "")), found.end
    if GATES.get(hook) != "waits":
        return state
    error = end.error if end is not None else None
    if end is not None and end.outcome == "timed_out":
        limit_s = state.job.timeouts.hook_timeout_s
        error = ErrorInfo(type="TimeoutError", message=f"no answer within {limit_s:g} s (hook_timeout_s)", kind="user")
    answer = HookAnswer(cause=cause, value=end.value if end is not None else None, error=error)
    return replace(state, hooks=replace(state.hooks, answers={**state.hooks.answers, hook: answer}))


def followed(before: RunState, transition: AnyTransition, after: RunState, n: int) -> RunState:
    """Return the state with the questions that a transition brings about, and without answers that are used up."""
    hooks = after.hooks
    if hooks.answers:
        used = _used_up(transition)
        answers = {hook: answer for hook, answer in hooks.answers.items() if hook not in used}
        if len(answers) != len(hooks.answers):
            hooks = replace(hooks, answers=answers)
    gates = after.job.hooks.gates
    new = [
        HookDue(hook=hook, cause=absolute(transition.cause, n), arguments=arguments)
        for hook, arguments in _events(before, transition, after)
        if hook in gates
    ]
    if new and not after.terminal:
        hooks = replace(hooks, due=(*hooks.due, *new)[-HOOKS_DUE_MAX_COUNT:])
    return after if hooks is after.hooks else replace(after, hooks=hooks)


def _used_up(transition: AnyTransition) -> tuple[str, ...]:
    if isinstance(transition, AttemptStarted):
        return (RESIZE, START, FAILURE, CONTEXT)
    return (FAILURE,) if isinstance(transition, FailureDecided) else ()


def _events(before: RunState, transition: AnyTransition, after: RunState) -> list[tuple[str, dict[str, Json]]]:
    attempt: dict[str, Json] = {"attempt": after.attempt}
    match transition:
        case ControllerChanged(epoch=1):
            return [("after_controller_start", {})]
        case AttemptStarted(num_workers=num_workers):
            return [("before_worker_group_start", {**attempt, "num_workers": num_workers})]
        case GroupLaidOut():
            return [("after_worker_group_start", attempt)]
        case FailureDecided(failure=failure):
            error: dict[str, Json] = {
                "type": failure.error.type,
                "message": failure.error.message,
                "traceback": failure.error.traceback,
                "rank": failure.rank,
            }
            return [("after_exception", {**attempt, "error": error}), *_replica_events(before, transition, attempt)]
        case ReplicaGroupReplaced(group=group, life=life, layout=layout):
            about: dict[str, Json] = {"replica": group, "life": life, "ranks": [laid.rank for laid in layout]}
            return [(REPLICA_START, {**attempt, **about})]
        case StateChanged():
            return _state_events(before, after, attempt)
        case _:
            return []


def _replica_events(
    before: RunState, transition: FailureDecided, attempt: dict[str, Json]
) -> list[tuple[str, dict[str, Json]]]:
    """Return what is asked about each replica group that a decision replaces, in the life that ends."""
    size = replica_size(before.job.scaling, before.job.backend)
    if size is None or before.group is None:
        return []
    return [
        (
            REPLICA_SHUTDOWN,
            {
                **attempt,
                "replica": number,
                "life": before.group.ranks[number * size].life,
                "ranks": list(members(number, size)),
            },
        )
        for number in transition.replicas
    ]


def _state_events(before: RunState, after: RunState, attempt: dict[str, Json]) -> list[tuple[str, dict[str, Json]]]:
    was, now = state_name(before.phase), state_name(after.phase)
    events: list[tuple[str, dict[str, Json]]] = [(STATE, {"previous": was, "current": now})]
    if now == "running" and was == "scheduling":
        events.append(("after_worker_group_training_start", attempt))
    if now in ("restarting", "rescheduling", "resizing", "shutting_down") and was != now and before.group is not None:
        aborted = before.ending is not None and before.ending.next == "aborted"
        events.append((f"before_worker_group_{'abort' if aborted else 'shutdown'}", attempt))
    return events
