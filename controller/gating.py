"""Gates: what the controller asks user code in the run's hook process, and what it does about the answers.

A question is a task, its answer a fact. Of gates in the middle of a decision the run waits for the answer, at most
`hook_timeout_s`; others are asked and only acted upon when they fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.controller.failing import shut_down_errored
from runfold.controller.validating import aborting
from runfold.events.base import relative
from runfold.events.failures import ErrorInfo, Failure
from runfold.events.gates import (
    ABORT,
    ABORT_GONE,
    CONTEXT,
    FAILURE,
    GATES,
    GROUP_GONE,
    REPORT,
    RESIZE,
    SHUTDOWN,
    START,
)
from runfold.events.hooks import HookDue
from runfold.events.state import ShuttingDown
from runfold.events.tasks import HOOK, Task
from runfold.events.transitions import TaskClosed, TaskOrdered, Warned

if TYPE_CHECKING:
    from runfold.events.base import Cause, Json
    from runfold.events.hooks import HookAnswer
    from runfold.events.state import RunState
    from runfold.events.tasks import OpenTask, TaskEnd
    from runfold.events.transitions import AnyTransition, RankLaid

Steps = tuple["AnyTransition", ...]
ABORT_TIMEOUT_S: Final = 1.0
"""How long an abort waits for its gate."""


def asks(state: RunState, hook: str) -> bool:
    """Whether a hook is a gate of this run."""
    return hook in state.job.hooks.gates


def open_question(state: RunState, hook: str) -> bool:
    """Whether a gate was asked and has not answered."""
    return any(one.task.kind == HOOK and one.task.arguments.get("hook") == hook for one in state.tasks)


def passed(state: RunState, hook: str, cause: Cause, arguments: dict[str, Json]) -> HookAnswer | Steps | None:
    """Ask a gate that the run waits for: None to go on without one, its answer, or what to do meanwhile."""
    if not asks(state, hook):
        return None
    answer = state.hooks.answers.get(hook)
    if answer is not None:
        return answer
    # Without a supervisor there is nobody who could ask it; it is waited for like for everything else.
    if open_question(state, hook) or state.supervisor not in state.sources:
        return ()
    return (_question(state, hook, cause, arguments),)


def _question(state: RunState, hook: str, cause: Cause, arguments: dict[str, Json]) -> TaskOrdered:
    number = state.hooks.asked + 1
    timeout_s = min(state.job.timeouts.hook_timeout_s, ABORT_TIMEOUT_S if hook == ABORT else float("inf"))
    task = Task(
        id=f"{HOOK}-{number}",
        kind=HOOK,
        arguments={"hook": hook, "arguments": arguments},
        deadline_t=state.t + timeout_s,
    )
    reason = f"the gate {hook} is asked; it has {timeout_s:g} s"
    return TaskOrdered(task=task, cause=relative(cause, state.n), reason=reason)


# --- gates that are waited for


def before_attempt(state: RunState, num_workers: int, cause: Cause) -> HookAnswer | Steps | None:
    """Ask what is asked before an attempt begins; the answer is that of the label selector."""
    about: dict[str, Json] = {"attempt": state.attempt + 1, "num_workers": num_workers}
    first = passed(state, RESIZE, cause, {**about, "decision": "resize"})
    return first if isinstance(first, tuple) else passed(state, START, cause, about)


def selector_of(answer: HookAnswer | None) -> dict[str, str] | None:
    """Return the label selector that a gate gave; None for none, or for what is none."""
    value = answer.value if answer is not None else None
    if not isinstance(value, dict) or not value:
        return None
    return {name: text for name, text in value.items() if isinstance(text, str)}


def before_layout(state: RunState, layout: tuple[RankLaid, ...], cause: Cause) -> HookAnswer | Steps | None:
    """Ask for what each rank is to be given."""
    group = state.group
    places = group.places if group is not None else ()
    workers: list[Json] = [
        {
            "world_rank": laid.rank,
            "local_rank": laid.local_rank,
            "node_rank": laid.node_rank,
            "node": places[laid.place].node,
        }
        for laid in layout
    ]
    return passed(state, CONTEXT, cause, {"attempt": state.attempt, "workers": workers})


def arguments_of(answer: HookAnswer | None) -> dict[str, Json]:
    """Return what a gate gave the ranks: by name, a value each."""
    value = answer.value if answer is not None else None
    if not isinstance(value, dict):
        return {}
    return {name: values for name, values in value.items() if isinstance(values, list)}


# --- gates that are not


def follow(state: RunState) -> Steps:
    """Ask the next question that nobody waits for."""
    if not state.job.hooks.gates or state.supervisor not in state.sources:
        return ()
    for due in (*state.hooks.due, *_levels(state)):
        if not open_question(state, due.hook):
            return (_question(state, due.hook, due.cause, due.arguments),)
    return ()


def _levels(state: RunState) -> tuple[HookDue, ...]:
    """Return what is asked because the state calls for it: of the newest report, of a group that is gone."""
    due: list[HookDue] = []
    group, cause = state.group, state.phase.cause
    news = group.news if group is not None and group.news is not None else cause
    if asks(state, REPORT) and state.reports > state.hooks.reports:
        metrics: Json = state.metrics if state.metrics is not None else {}
        arguments: dict[str, Json] = {"reports": state.reports, "metrics": [metrics], "attempt": state.attempt}
        due.append(HookDue(hook=REPORT, cause=news, arguments=arguments))
    gone = ABORT_GONE if aborting(state) else GROUP_GONE
    if asks(state, gone) and group is not None and group.released and group.attempt > state.hooks.gone:
        due.append(HookDue(hook=gone, cause=news, arguments={"attempt": group.attempt}))
    return tuple(due)


# --- answers


def closed(state: RunState, one: OpenTask, end: TaskEnd, task_closed: TaskClosed) -> Steps:
    """Return what the answer of a gate brings about."""
    hook = str(one.task.arguments.get("hook", ""))
    error = _error(state, end)
    if error is None:
        return (task_closed,)
    said = f"the gate {hook} {'did not answer' if end.outcome == 'timed_out' else 'raised'}: {error.headline}"
    if not _ends_the_run(state, hook):
        reason = f"{said}; the run goes on"
        return (Warned(about=f"gate:{hook}", cause=task_closed.cause, reason=reason), task_closed)
    if hook in (FAILURE, SHUTDOWN):
        return (task_closed,)  # the decision that it was asked for is made with it
    failure = Failure(kind="controller", attempt=state.attempt, node="", error=error, t=state.t, cause=end.cause)
    return (task_closed, shut_down_errored(state, failure, task_closed.cause, f"{said}; the run ends"))


def _error(state: RunState, end: TaskEnd) -> ErrorInfo | None:
    if end.outcome == "done":
        return None
    if end.outcome == "timed_out":
        limit_s = state.job.timeouts.hook_timeout_s
        message = f"no answer within {limit_s:g} s (hook_timeout_s)"
        return ErrorInfo(type="TimeoutError", message=message, kind="controller")
    return end.error or ErrorInfo(type="HookError", message="it failed", kind="controller")


def _ends_the_run(state: RunState, hook: str) -> bool:
    """Say whether a failing gate ends the run: not one that only warns, nor when it ends anyway."""
    if state.job.hooks.gates.get(hook, "warn") == "warn" or hook not in GATES or hook == ABORT:
        return False
    phase = state.phase
    if state.ending is not None or aborting(state):
        return False
    return not (isinstance(phase, ShuttingDown) and phase.next != "finished")


def failed(answer: HookAnswer | None, state: RunState, hook: str) -> ErrorInfo | None:
    """Return what a gate failed with, if that counts."""
    if answer is None or answer.error is None or state.job.hooks.gates.get(hook) == "warn":
        return None
    return answer.error
