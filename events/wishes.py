"""What an accepted request changes of the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from runfold.events.checkpoints import Wanted
from runfold.events.elastic import asked
from runfold.events.marks import Ending
from runfold.events.notices import cancelled, noticed, without
from runfold.events.requests import (
    AbortRun,
    AdmitNode,
    CancelPreemption,
    CheckpointNow,
    DumpStacks,
    Join,
    NoticePreemption,
    ResizeRun,
    StopAtCheckpoint,
)

if TYPE_CHECKING:
    from runfold.events.base import Cause
    from runfold.events.marks import PendingRequest
    from runfold.events.state import RunState


def granted(state: RunState, request_id: str, t: float) -> RunState:
    """Return the state with a pending request granted; unchanged when no such request is pending."""
    for waiting in state.pending:
        if waiting.request.id == request_id:
            return _granted(state, waiting, t)
    return state


def _wanted(state: RunState, request: CheckpointNow | StopAtCheckpoint, cause: Cause) -> Wanted:
    """Return the wish for a checkpoint; one that is there already stays it, and may become a wish to stop."""
    reason = request.reason if isinstance(request, StopAtCheckpoint) else ""
    stop = isinstance(request, StopAtCheckpoint)
    before = state.checkpoints.wanted
    if before is not None and (before.stop or not stop):
        return before
    ranks = state.group.ranks if state.group is not None else ()
    index = state.checkpoints.base + max((rank.index for rank in ranks), default=-1)
    return Wanted(id=request.id, by=request.by, cause=cause, stop=stop, reason=reason, index=index)


def _granted(state: RunState, waiting: PendingRequest, t: float) -> RunState:
    request, cause = waiting.request, waiting.cause
    match request:
        case AbortRun():
            ending = Ending(next="aborted", by=request.by, reason=request.reason, cause=cause)
            aborted = state.ending is not None and state.ending.next == "aborted"
            return state if aborted else replace(state, ending=ending)
        case ResizeRun():
            elastic = asked(state.elastic, cause, t)
            return replace(state, wanted_workers=request.num_workers, elastic=elastic)
        case NoticePreemption():
            notice = noticed(
                state.notice, request.nodes, request.within_s, t=t, cause=cause, reason=request.reason, asked=True
            )
            return replace(state, notice=notice)
        case CancelPreemption():
            away = without(state.away, request.nodes)
            return replace(state, notice=cancelled(state.notice, request.nodes), away=away)
        case CheckpointNow() | StopAtCheckpoint():
            return replace(state, checkpoints=replace(state.checkpoints, wanted=_wanted(state, request, cause)))
        case AdmitNode() | DumpStacks() | Join():
            return state  # what they bring about is a transition of its own
        case _:
            assert_never(request)
