"""Failures as facts tell them, in the words of the state."""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from runfold.events.failures import ErrorInfo, Failure

if TYPE_CHECKING:
    from runfold.events.base import Cause
    from runfold.events.facts import PlacementFailed, RankExited, RankFailed, RunnerLost
    from runfold.events.failures import FailureKind

LAST_LINE_CHARS_MAX: Final = 160
_NOT_PLACED: Final[dict[str, tuple[FailureKind, str]]] = {
    "never": ("placement", "PlacementImpossible"),
    "late": ("start_timeout", "StartTimeout"),
    "failed": ("placement", "PlacementFailed"),
}


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; `signal 99` for one without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_ended(exit_code: int | None, signal: int | None) -> str:
    """Return how a process ended, in words."""
    if signal is not None:
        return f"ended by {signal_name(signal)}"
    return "ended, nobody knows how" if exit_code is None else f"exited with code {exit_code}"


def of_rank_failed(item: RankFailed, *, node: str, t: float, cause: Cause) -> Failure:
    """Return the failure of a rank whose function raised or could not be loaded."""
    return Failure(
        kind=item.error.kind,
        attempt=item.attempt,
        node=node,
        error=item.error,
        t=t,
        cause=cause,
        rank=item.rank,
        life=item.life,
    )


def of_rank_exited(item: RankExited, *, node: str, t: float, cause: Cause) -> Failure:
    """Return the failure of a rank whose process ended without a return and without an error told."""
    message = how_ended(item.exit_code, item.signal)
    kind: FailureKind
    if item.asked:
        kind, type_, message = "runner", "RankStopped", f"{message}: its runner ended it though the run goes on"
    elif item.oom:
        kind, type_, message = "oom", "OutOfMemory", f"{message} for want of memory"
    elif item.signal is not None:
        kind, type_ = "signal", "RankKilled"
    else:
        how = "ended" if item.exit_code is None else message
        unknown = ", nobody knows how" if item.exit_code is None else ""
        kind, type_, message = "exit", "RankExited", f"{how} without returning from the training function{unknown}"
    return Failure(
        kind=kind,
        attempt=item.attempt,
        node=node,
        error=ErrorInfo(type=type_, message=message + _last_words(item), kind=kind, where=item.where),
        t=t,
        cause=cause,
        rank=item.rank,
        life=item.life,
        exit_code=item.exit_code,
        signal=item.signal,
    )


def _last_words(item: RankExited) -> str:
    if item.where is not None:
        return f" at {item.where}"  # what follows in the output is the interpreter's, about itself
    lines = item.last_lines.strip().splitlines()
    if not lines:
        return ""
    line = lines[-1].strip()
    return f"; its last line: {line[:LAST_LINE_CHARS_MAX]}{'…' if len(line) > LAST_LINE_CHARS_MAX else ''}"


def of_runner_lost(item: RunnerLost, *, t: float, cause: Cause) -> Failure:
    """Return the failure of a node whose runner is gone."""
    message = f"the runner {how_ended(item.exit_code, item.signal)}" if not item.taken else "its places were taken away"
    return told_of_node(
        "preempted" if item.taken else "runner",
        "Preempted" if item.taken else "RunnerLost",
        f"{message}: {item.reason}" if item.reason else message,
        attempt=item.attempt,
        node=item.node,
        t=t,
        cause=cause,
        exit_code=item.exit_code,
        signal=item.signal,
    )


def of_placement_failed(item: PlacementFailed, *, t: float, cause: Cause) -> Failure:
    """Return the failure of a group that has got no places; one that may get them later is tried again."""
    kind, type_ = _NOT_PLACED[item.verdict]
    return told_of_node(kind, type_, item.reason, attempt=item.attempt, node="", t=t, cause=cause)


def told_of_node(
    kind: FailureKind,
    type_: str,
    message: str,
    *,
    attempt: int,
    node: str,
    t: float,
    cause: Cause,
    exit_code: int | None = None,
    signal: int | None = None,
) -> Failure:
    """Return a failure that is no rank's own."""
    return Failure(
        kind=kind,
        attempt=attempt,
        node=node,
        error=ErrorInfo(type=type_, message=message, kind=kind),
        t=t,
        cause=cause,
        exit_code=exit_code,
        signal=signal,
    )


def slim(failure: Failure) -> Failure:
    """Return a failure without its traceback, for where it stands beside others."""
    if failure.error.traceback is None:
        return failure
    return replace(failure, error=replace(failure.error, traceback=None))
