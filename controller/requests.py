"""Answers to requests: each is accepted or refused, with the reason, by the entry that folds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from runfold.controller.looking import looks
from runfold.controller.sizes import wanted_workers
from runfold.events.base import Cause, Value, relative
from runfold.events.counts import stay
from runfold.events.escape import safe
from runfold.events.replicas import replica_size
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
from runfold.events.state import ShuttingDown
from runfold.events.transitions import NodeAdmitted, RequestAccepted, RequestRefused, SourceJoined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runfold.events.marks import PendingRequest
    from runfold.events.requests import AnyRequest
    from runfold.events.state import RunState
    from runfold.events.transitions import AnyTransition


NODE_MAX_COUNT: Final = 128
"""Longest name of a node in a request, in characters: the state keeps those that are taken back."""


class Yes(Value, frozen=True):
    """Accepted, for this reason."""

    reason: str


class No(Value, frozen=True):
    """Refused, for this reason."""

    reason: str


def answer(state: RunState, waiting: PendingRequest) -> Sequence[AnyTransition]:
    """Return the transitions that answer a pending request."""
    request, cause = waiting.request, relative(waiting.cause, state.n)
    if isinstance(request, Join):
        return [_joined(state, request, waiting)]
    said = _judged(state, request)
    kind = type(request).__struct_config__.tag
    name = str(kind)
    if isinstance(said, No):
        return [RequestRefused(id=request.id, request=name, by=request.by, cause=cause, reason=said.reason)]
    accepted = RequestAccepted(id=request.id, request=name, by=request.by, cause=cause, reason=said.reason)
    if isinstance(request, DumpStacks):
        return [accepted, *looks(state, cause, said.reason)]
    if isinstance(request, AdmitNode):
        return [accepted, NodeAdmitted(node=request.node, cause=cause, reason=said.reason)]
    return [accepted]


def _joined(state: RunState, request: Join, waiting: PendingRequest) -> SourceJoined:
    old = state.sources.get(request.source)
    incarnation = old.incarnation + 1 if old is not None else 1
    again = f"; incarnation {old.incarnation} is over" if old is not None else ""
    return SourceJoined(
        source=request.source,
        boot=request.boot,
        incarnation=incarnation,
        cause=relative(waiting.cause, state.n),
        reason=f"{request.source} asked to speak for this run: its facts are numbered from 1{again}",
    )


def _judged(state: RunState, request: AnyRequest) -> Yes | No:
    match request:
        case AbortRun():
            return _abort(state, request)
        case ResizeRun():
            return No("the run is ending") if ending(state) else _resize(state, request)
        case NoticePreemption():
            return No("the run is ending") if ending(state) else _notice(state, request)
        case CancelPreemption():
            return _cancel(state, request)
        case AdmitNode():
            if request.node in (*state.excluded, *state.away):
                return Yes(f"{request.node} may be used again, as {request.by or 'somebody'} asked")
            return No(f"{request.node} is not excluded from this run")
        case CheckpointNow() | StopAtCheckpoint():
            return No("the run is ending") if ending(state) else _checkpoint(state, request)
        case DumpStacks():
            if not looks(state, Cause(input=0), ""):
                return No("no rank is at work")
            return Yes(f"{request.by or 'somebody'} asked to see what the ranks do")
        case Join():
            return Yes("a source joined")
        case _:
            assert_never(request)


def ending(state: RunState) -> bool:
    """Whether the run is on its way to its end."""
    return state.ending is not None or isinstance(state.phase, ShuttingDown)


def _abort(state: RunState, request: AbortRun) -> Yes:
    by = request.by or "somebody"
    why = f": {request.reason}" if request.reason else ""
    if isinstance(state.phase, ShuttingDown) and state.phase.next != "aborted":
        return Yes(
            f"the run ends as {state.phase.next} already; {by} asked to abort it, so it gets less time for it{why}"
        )
    if ending(state) and (state.ending is None or state.ending.next == "aborted"):
        return Yes(f"the run is being aborted already; {by} asked too{why}")
    return Yes(f"aborted by {by}{why}")


def _resize(state: RunState, request: ResizeRun) -> Yes | No:
    scaling, wanted = state.job.scaling, request.num_workers
    if not scaling.elastic:
        return No(
            f"the job has a fixed size of {scaling.max_workers}; only one with num_workers = [min, max] can change"
        )
    if not scaling.min_workers <= wanted <= scaling.max_workers:
        return No(f"{wanted} ranks are not within num_workers = [{scaling.min_workers}, {scaling.max_workers}]")
    size = replica_size(scaling, state.job.backend)
    if size is not None and wanted % size:
        return No(f"{wanted} ranks are no whole replica groups of {size} (scaling.replica_group_size)")
    if wanted == wanted_workers(state):
        return Yes(f"{wanted} ranks are what the run has or is about to have")
    return Yes(f"{wanted} ranks from the next start of the group on; {request.by or 'somebody'} asked for it")


def _notice(state: RunState, request: NoticePreemption) -> Yes | No:
    if not request.nodes:
        return No("a notice must name the nodes that will be taken back")
    odd = [node for node in request.nodes if not 0 < len(node) <= NODE_MAX_COUNT or safe(node) != node]
    if odd:
        return No(f"{odd[0][:NODE_MAX_COUNT]!r} is no node's name")
    places = state.group.places if state.group is not None else ()
    here = {place.node for place in places}
    if here and not here & set(request.nodes):
        return No(f"the run has no rank on {', '.join(request.nodes)}; it runs on {', '.join(sorted(here))}")
    return Yes(f"{', '.join(request.nodes)} will be taken back{f': {request.reason}' if request.reason else ''}")


def _checkpoint(state: RunState, request: CheckpointNow | StopAtCheckpoint) -> Yes:
    by = request.by or "somebody"
    before = state.checkpoints.wanted
    if isinstance(request, StopAtCheckpoint):
        why = f": {request.reason}" if request.reason else ""
        return Yes(f"the run ends as finished with its next checkpoint, as {by} asked{why}")
    if before is not None:
        return Yes(f"the ranks have been asked for a checkpoint already; {by} asked too")
    return Yes(f"the ranks are asked for a checkpoint at their next chance, as {by} asked")


def _cancel(state: RunState, request: CancelPreemption) -> Yes | No:
    held = state.notice.nodes if state.notice is not None else ()
    if not {*held, *state.away} & set(request.nodes):
        return No(f"no notice is in force for {', '.join(request.nodes) or 'no node at all'}")
    return Yes(stay(request.nodes))
