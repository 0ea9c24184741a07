"""What became of a run, in words: the first failing rank's own error, then what was decided, then what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.events.counts import counted
from runfold.events.edges import state_name
from runfold.events.state import Aborted, Errored, Finished
from runfold.events.values import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.base import Json
    from runfold.events.failures import Failure
    from runfold.events.state import RunState
    from runfold.locate import Where

VALUE_CHARS_MAX: Final = 60
OTHERS_SHOWN_MAX: Final = 3


def metrics_text(metrics: Mapping[str, Json]) -> str:
    """Return packed metrics on one line: `epoch=3 loss=0.1713`."""
    return " ".join(f"{name}={value_text(unpack(value))}" for name, value in metrics.items())


def value_text(value: Json, chars_max: int = VALUE_CHARS_MAX) -> str:
    """Return a value for people: floats with four significant digits, long ones cut."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def ending_text(state: RunState, where: Where | None = None) -> str:
    """Return the end of a run: what it was, and what a person needs to go on; commands ask the same place."""
    match state.phase:
        case Finished():
            return _finished(state, where)
        case Errored(failure=failure):
            return _errored(state, failure or state.failure, where)
        case Aborted(reason=reason):
            return f"{state.run} aborted after {state.t:.1f} s: {reason}\n{_story(state, where)}"
        case _:
            return f"{state.run} is {state_name(state.phase)}: {state.phase.reason}"


def failure_text(failure: Failure) -> str:
    """Return one failure: whose, what, where in the user's code, and its traceback if there is one."""
    who = (
        f"rank {failure.rank}" if failure.rank is not None else f"node {failure.node}" if failure.node else "the group"
    )
    # A gate is asked before there is a group: nobody has failed then but the run.
    what = (
        f"{who} failed in attempt {failure.attempt}" if failure.attempt else "the run failed before its first attempt"
    )
    lines = [f"{what}: {failure.error.headline}"]
    if failure.error.where:
        lines.append(f"  at {failure.error.where}")
    traceback = (failure.error.traceback or "").rstrip().splitlines()
    if len(traceback) > 1:  # one line is the headline again
        lines += ["", *(f"  {line}" for line in traceback)]
    return "\n".join(lines)


def budgets_text(state: RunState) -> str:
    """Return what is spent and left of each budget that was touched or has a limit; nothing when there is none."""
    told = {name: budget for name, budget in state.budgets.items() if budget.spent or budget.limit > 0}
    if not told:
        return ""
    return "budgets: " + "; ".join(
        f"{name} {budget.spent} (unlimited)"
        if budget.limit < 0
        else f"{name} {budget.spent} of {budget.limit}, {max(0, budget.limit - budget.spent)} left"
        for name, budget in told.items()
    )


def _finished(state: RunState, where: Where | None) -> str:
    ranks = state.group.num_workers if state.group is not None else 0
    done = f"{counted(ranks, 'rank')}, {counted(state.attempt, 'attempt')}, {counted(state.reports, 'report')}"
    lines = [f"{state.run} finished in {state.t:.1f} s: {done}"]
    if state.metrics:
        lines.append(f"last metrics: {metrics_text(state.metrics)}")
    if state.return_value is not None:
        lines.append(f"returned: {value_text(unpack(state.return_value))}")
    elif state.return_blob is not None:
        lines.append(f"returned: an object; in Python, runfold.get_result({state.run!r}).return_value is it")
    return "\n".join([*lines, _story(state, where)])


def _errored(state: RunState, failure: Failure | None, where: Where | None) -> str:
    lines: list[str] = []
    if failure is not None:
        lines += [failure_text(failure), ""]
    others = [other for other in state.others if other != failure]
    for other in others[:OTHERS_SHOWN_MAX]:
        lines.append(f"also: {failure_text(other).partition(chr(10))[0]}")
    if len(others) > OTHERS_SHOWN_MAX:
        lines.append(f"also: {len(others) - OTHERS_SHOWN_MAX} more")
    # What failed was said above.
    reason = state.phase.reason if failure is None else state.phase.reason.replace(f": {failure.error.headline}", "")
    lines.append(f"{state.run} errored after {state.t:.1f} s, attempt {state.attempt}: {reason}")
    budgets = budgets_text(state)
    return "\n".join([*lines, *([budgets] if budgets else []), _story(state, where)])


def _story(state: RunState, where: Where | None) -> str:
    replay, logs = (
        f"runfold {name} {state.run}" if where is None else where.hint(name, state.run) for name in ("replay", "logs")
    )
    return f"its story: {replay}; what its ranks printed: {logs}"
