"""What a look into the storage found of an earlier run, and what this run begins from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.controller.words import listed
from runfold.events.base import Value, relative
from runfold.events.checkpoints import score_of
from runfold.events.failures import ErrorInfo
from runfold.events.transitions import FoundCheckpoint, RunContinued, TaskClosed, Warned

if TYPE_CHECKING:
    from runfold.events.base import Cause, Json
    from runfold.events.state import RunState
    from runfold.events.tasks import OpenTask, TaskEnd
    from runfold.events.transitions import AnyTransition

_OWN_NAME: Final = re.compile(r"checkpoint_([0-9]{1,15})_[0-9]+")


class Found(Value, frozen=True, kw_only=True):
    """What a look into the storage found: the run that wrote there last, and its committed checkpoints.

    `doubtful`: those whose files may not belong together. `damaged`: directories whose manifest cannot be read.
    """

    run: str | None = None
    checkpoints: tuple[FoundCheckpoint, ...] = ()
    doubtful: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def found_in(value: Json) -> Found | None:
    """Return what was found; None when that was nothing of an earlier run."""
    try:
        found = msgspec.convert(value, Found)
    except msgspec.ValidationError:
        return None
    return found if found.run is not None or found.checkpoints or found.damaged else None


def continued(state: RunState, one: OpenTask, end: TaskEnd, found: Found) -> tuple[AnyTransition, ...]:
    """Begin from the last checkpoint that can be trusted; what is damaged is named, and passed over if one is left."""
    cause = relative(end.cause, state.n)
    doubtful = () if state.job.checkpoint.resume_doubtful else found.doubtful
    usable = tuple(_resumed(state, one) for one in found.checkpoints if one.name not in doubtful)
    if not found.damaged:
        return (_continue(found, usable, doubtful, cause),)
    seals = listed([f"{name}/.runfold/manifest.json" for name in found.damaged])
    if not usable:
        message = (
            f"{seals} cannot be read, and no other checkpoint is left to begin from. Nothing was changed there; bring "
            "it back from a copy, or choose another name"
        )
        error = ErrorInfo(type="StorageError", message=message, kind="storage")
        reason = f"the storage cannot be used: {error.headline}"
        closed = TaskClosed(
            task=one.task.id, task_kind=one.task.kind, outcome="failed", error=error, cause=cause, reason=reason
        )
        return (closed,)
    begun = _continue(found, usable, doubtful, cause)
    reason = (
        f"{seals} cannot be read: passed over, and left as it is; the run begins from {begun.checkpoint}, the newest "
        "that is whole"
    )
    return (begun, Warned(about="damaged", checkpoint=found.damaged[-1], cause=cause, reason=reason))


def _continue(
    found: Found, usable: tuple[FoundCheckpoint, ...], doubtful: tuple[str, ...], cause: Cause
) -> RunContinued:
    newest = max(usable, key=lambda one: (one.index, one.attempt), default=None)
    # A damaged directory keeps its name: none of this run's may be that.
    own = (_OWN_NAME.fullmatch(name) for name in found.damaged)
    indices = [one.index + 1 for one in found.checkpoints] + [int(name[1]) + 1 for name in own if name is not None]
    who = f"run {found.run}" if found.run else "an earlier run"
    where = f" from {newest.name}" if newest is not None else "; it left no checkpoint"
    passed = f"; {listed(list(doubtful))} may hold files that do not belong together: passed over" if doubtful else ""
    return RunContinued(
        run=found.run or "",
        checkpoint=newest.name if newest is not None else None,
        first_index=max(indices, default=0),
        found=usable,
        cause=cause,
        reason=f"{who} was here before: this run continues it{where}{passed}",
    )


def _resumed(state: RunState, one: FoundCheckpoint) -> FoundCheckpoint:
    """Rank a checkpoint of an earlier run anew. One that was to be validated waits for a run that can do that."""
    one = msgspec.structs.replace(one, score=_ranked(state, one.score))
    if state.job.validation is None and one.status == "pending":
        return msgspec.structs.replace(one, status="committed", wish=None)
    return one


def _ranked(state: RunState, value: float | None) -> float | None:
    attribute = state.job.checkpoint.checkpoint_score_attribute
    return None if attribute is None or value is None else score_of({attribute: value}, state.job.checkpoint)[0]
