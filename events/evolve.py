"""Evolving: what a transition changes of the state. Second half of the fold."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from runfold.events.attempts import attempt_started, failure_decided, laid_out, revised
from runfold.events.base import absolute
from runfold.events.conclusions import Decider
from runfold.events.edges import IllegalEdge, state_name
from runfold.events.elastic import dropped, left_running, planned
from runfold.events.hooks import followed
from runfold.events.keeping import closed, committed, continued, doubted, ordered, validated, warned
from runfold.events.limits import REPLACED_BOOTS_MAX_COUNT, REQUEST_IDS_MAX
from runfold.events.marks import Answered
from runfold.events.notices import after_join, without
from runfold.events.phases import changed_phase
from runfold.events.replicas import replaced
from runfold.events.requests import Join
from runfold.events.state import Initializing, Preempting, Restored, RunState, Source, Spent, Unborn
from runfold.events.transitions import (
    AttemptStarted,
    CheckpointCommitted,
    CheckpointsDoubted,
    CheckpointValidated,
    ControllerChanged,
    FailureDecided,
    FirstCauseRevised,
    GroupLaidOut,
    LogRestored,
    NodeAdmitted,
    NodeExcluded,
    ReplicaGroupReplaced,
    RequestAccepted,
    RequestRefused,
    ResizeDropped,
    ResizePlanned,
    RunAccepted,
    RunContinued,
    SourceJoined,
    StateChanged,
    TaskClosed,
    TaskOrdered,
    Warned,
)
from runfold.events.wishes import granted

if TYPE_CHECKING:
    from runfold.events.base import Moment
    from runfold.events.requests import AnyRequest
    from runfold.events.state import AnyState, Group
    from runfold.events.transitions import AnyTransition


def evolve(state: AnyState, transition: AnyTransition, at: Moment) -> RunState:
    """Return the state after a transition decided in entry `at.n`.

    Raises `IllegalEdge` for one that may not follow this state.
    """
    if isinstance(state, Unborn):
        if not isinstance(transition, RunAccepted):
            raise IllegalEdge(f"{type(transition).__name__} before RunAccepted: a run begins with its job")
        return _born(transition, at)
    if state.phase.terminal and not isinstance(transition, LogRestored):
        raise IllegalEdge(f"{type(transition).__name__} after {state_name(state.phase)}: a terminal state is final")
    evolved = _evolved(state, transition, at)
    return followed(state, transition, evolved, at.n) if state.job.hooks.gates else evolved


def _evolved(state: RunState, transition: AnyTransition, at: Moment) -> RunState:
    # What comes most often stands first: each case that does not match costs as much as a call.
    match transition:
        case StateChanged():
            return _state_changed(state, transition, at)
        case AttemptStarted():
            return attempt_started(state, transition, at)
        case GroupLaidOut():
            return laid_out(state, transition, at)
        case FailureDecided():
            return failure_decided(state, transition, at)
        case TaskOrdered():
            return ordered(state, transition, at)
        case TaskClosed():
            return closed(state, transition, at)
        case CheckpointCommitted():
            return committed(state, transition, at)
        case ReplicaGroupReplaced():
            return replaced(state, transition, at)
        case FirstCauseRevised():
            return revised(state, transition)
        case RunAccepted():
            raise IllegalEdge(f"RunAccepted for {state.run}, which exists: a run is accepted once")
        case ControllerChanged():
            return _controller_changed(state, transition)
        case SourceJoined():
            return _joined(state, transition)
        case RequestAccepted():
            return _answered(granted(state, transition.id, at.t), transition, accepted=True)
        case RequestRefused():
            return _answered(state, transition, accepted=False)
        case CheckpointValidated():
            return validated(state, transition, at)
        case RunContinued():
            return continued(state, transition)
        case CheckpointsDoubted():
            return doubted(state, transition)
        case Warned():
            return warned(state, transition)
        case NodeExcluded():
            return replace(state, excluded=(*state.excluded, transition.node))
        case NodeAdmitted():
            return _admitted(state, transition.node)
        case ResizePlanned():
            return planned(state, transition, at)
        case ResizeDropped():
            return dropped(state, transition, at)
        case LogRestored():
            return _restored(state, transition, at)
        case _:
            assert_never(transition)


# --- a run begins


def _born(transition: RunAccepted, at: Moment) -> RunState:
    failure = transition.job.failure
    return RunState(
        run=transition.job.id or f"job-{transition.jobs_sequence}",
        job=transition.job,
        digest=transition.digest,
        jobs_sequence=transition.jobs_sequence,
        n=at.n,
        t=at.t,
        phase=Initializing(since_t=at.t, reason=transition.reason, cause=absolute(transition.cause, at.n)),
        epoch=0,
        controller="",
        decider=Decider(version=""),
        warnings=transition.warnings,
        budgets={
            "worker": Spent(limit=failure.max_failures),
            "startup": Spent(limit=failure.controller_failure_limit),
            "preemption": Spent(limit=failure.max_preemption_failures),
            "hang": Spent(limit=failure.max_hangs),
        },
    )


def _controller_changed(state: RunState, transition: ControllerChanged) -> RunState:
    if transition.epoch != state.epoch + 1:
        raise IllegalEdge(f"epoch {transition.epoch} after epoch {state.epoch}: the log hands out {state.epoch + 1}")
    return replace(
        state,
        epoch=transition.epoch,
        controller=transition.controller,
        decider=transition.decider,
        taking_over=None,
    )


def _restored(state: RunState, transition: LogRestored, at: Moment) -> RunState:
    if not transition.epoch:
        return state
    if transition.epoch <= state.epoch:
        raise IllegalEdge(f"restored in epoch {transition.epoch} after epoch {state.epoch}: epochs go up")
    return replace(
        state,
        epoch=transition.epoch,
        controller=transition.by,
        restoring=None,
        restored=Restored(generation=transition.generation, epoch=transition.epoch, n=at.n),
    )


def _state_changed(state: RunState, transition: StateChanged, at: Moment) -> RunState:
    phase = changed_phase(state, transition, t=at.t, cause=absolute(transition.cause, at.n))
    return replace(state, phase=phase, fired=(), elastic=left_running(state.elastic))


# --- sources, requests, nodes


def _joined(state: RunState, transition: SourceJoined) -> RunState:
    old = state.sources.get(transition.source)
    expected = old.incarnation + 1 if old is not None else 1
    if transition.incarnation != expected:
        raise IllegalEdge(f"incarnation {transition.incarnation} of {transition.source}: the log hands out {expected}")
    replaced = (*old.replaced, old.boot)[-REPLACED_BOOTS_MAX_COUNT:] if old is not None else ()
    source = Source(boot=transition.boot, incarnation=transition.incarnation, replaced=replaced)
    pending = tuple(waiting for waiting in state.pending if not _is_settled(waiting.request, transition))
    group = state.group if old is None else _not_ready(state.group, transition.source)
    # A pool that begins anew has the nodes that it says it has.
    away, notice = state.away, state.notice
    if transition.source == state.supervisor:
        # What it knows of nodes it says itself; of those whose time was over before, nobody else will.
        away = ()
        over = notice is not None and notice.deadline_t <= state.t and not isinstance(state.phase, Preempting)
        notice = None if over else after_join(state)
    sources = {**state.sources, transition.source: source}
    return replace(state, sources=sources, pending=pending, group=group, away=away, notice=notice)


def _is_settled(request: AnyRequest, joined: SourceJoined) -> bool:
    """Whether a wish is answered by a process having joined: its own, or that of another which came too late."""
    if not isinstance(request, Join) or request.source != joined.source:
        return False
    return request.boot == joined.boot or request.after is not None


def _not_ready(group: Group | None, source: str) -> Group | None:
    """Take back what an older incarnation of a runner had said of itself."""
    if group is None:
        return None
    places = tuple(replace(place, ready=None) if place.source == source else place for place in group.places)
    early = {name: ready for name, ready in group.early.items() if name != source}
    return replace(group, places=places, early=early)


def _answered(state: RunState, transition: RequestAccepted | RequestRefused, *, accepted: bool) -> RunState:
    answer = Answered(id=transition.id, accepted=accepted, reason=transition.reason)
    pending = tuple(waiting for waiting in state.pending if waiting.request.id != transition.id)
    return replace(state, pending=pending, answered=(*state.answered, answer)[-REQUEST_IDS_MAX:])


def _admitted(state: RunState, node: str) -> RunState:
    """Lift an exclusion and forget what the node was blamed for, or that it was taken back."""
    failures = {name: count for name, count in state.platform_failures.items() if name != node}
    excluded = tuple(name for name in state.excluded if name != node)
    return replace(state, excluded=excluded, platform_failures=failures, away=without(state.away, (node,)))
