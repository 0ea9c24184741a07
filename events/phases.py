"""The phase that a `StateChanged` makes, with the data its state needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, assert_never

from runfold.events.edges import EDGES, IllegalEdge, check_edge, state_name
from runfold.events.state import (
    Aborted,
    Errored,
    Finished,
    Initializing,
    Preempting,
    Rescheduling,
    Resizing,
    Restarting,
    Running,
    Scheduling,
    ShuttingDown,
)

if TYPE_CHECKING:
    from runfold.events.base import Cause
    from runfold.events.state import AnyPhase, RunState
    from runfold.events.transitions import StateChanged

T = TypeVar("T")


def changed_phase(state: RunState, transition: StateChanged, *, t: float, cause: Cause) -> AnyPhase:
    """Return the new phase; raise `IllegalEdge` for an edge that is none, or for data that is missing or wrong."""
    phase, before, to_state = state.phase, transition.from_state, transition.to_state
    if before != state_name(phase):
        raise IllegalEdge(f"a change from {before}, but the run is {state_name(phase)}")
    if to_state not in EDGES[before]:
        check_edge(phase, to_state)
    if isinstance(phase, ShuttingDown):
        _check_end(phase, transition)
    if to_state == "scheduling" and (state.group is None or state.group.handled):
        raise IllegalEdge(f"{transition.from_state} → scheduling without a new attempt")
    return _phase(state, transition, t, cause)


def _preempting(state: RunState, new: StateChanged, t: float, cause: Cause) -> Preempting:
    """What was known of the same before says since when."""
    before = state.phase if isinstance(state.phase, Preempting) else None
    reported = max((rank.index for rank in state.group.ranks), default=-1) if state.group is not None else -1
    return Preempting(
        since_t=before.since_t if before is not None else t,
        reason=new.reason,
        cause=cause,
        nodes=new.nodes,
        deadline_t=_needed(new.deadline_t, new, "deadline_t"),
        after=before.after if before is not None else state.checkpoints.base + reported,
    )


def _phase(state: RunState, new: StateChanged, t: float, cause: Cause) -> AnyPhase:
    phase, reason = state.phase, new.reason
    match new.to_state:
        case "running":
            return Running(since_t=t, reason=reason, cause=cause)
        case "initializing":
            return Initializing(since_t=t, reason=reason, cause=cause)
        case "scheduling":
            workers = _needed(new.num_workers, new, "num_workers")
            due_t = new.deadline_t
            return Scheduling(since_t=t, reason=reason, cause=cause, num_workers=workers, deadline_t=due_t)
        case "rescheduling" | "restarting":
            kind = Rescheduling if new.to_state == "rescheduling" else Restarting
            failure, not_before_t = _needed(new.failure, new, "failure"), _needed(new.not_before_t, new, "not_before_t")
            kept = new.kept
            return kind(since_t=t, reason=reason, cause=cause, failure=failure, not_before_t=not_before_t, kept=kept)
        case "preempting":
            return _preempting(state, new, t, cause)
        case "resizing":
            workers = _needed(new.num_workers, new, "num_workers")
            return Resizing(since_t=t, reason=reason, cause=cause, num_workers=workers)
        case "shutting_down":
            return ShuttingDown(
                since_t=phase.since_t if isinstance(phase, ShuttingDown) else t,
                reason=reason,
                cause=cause,
                next=_needed(new.next, new, "next"),
                deadline_t=_needed(new.deadline_t, new, "deadline_t"),
                failure=new.failure,
            )
        case "finished":
            return Finished(since_t=t, reason=reason, cause=cause)
        case "errored":
            return Errored(since_t=t, reason=reason, cause=cause, failure=new.failure)
        case "aborted":
            return Aborted(since_t=t, reason=reason, cause=cause)
        case _:
            assert_never(new.to_state)


def _needed(value: T | None, transition: StateChanged, name: str) -> T:
    if value is None:
        raise IllegalEdge(f"{transition.from_state} → {transition.to_state} without {name}")
    return value


def _check_end(phase: ShuttingDown, transition: StateChanged) -> None:
    """What was decided to be the end stays it, save that a teardown that fails makes an error of a success."""
    end = transition.next if transition.to_state == "shutting_down" else transition.to_state
    if end != phase.next and not (end == "errored" and phase.next == "finished"):
        raise IllegalEdge(f"shutting down to be {phase.next}, not {end}")
