"""What several states do: name their cause, change to another state, fail, finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.controller.failing import decide_failure, shut_down_errored
from runfold.controller.gating import failed as gate_failed
from runfold.controller.gating import passed
from runfold.controller.keeping import doubt, sealing
from runfold.events.base import relative
from runfold.events.edges import state_name
from runfold.events.gates import FAILURE
from runfold.events.transitions import FailureDecided, StateChanged

if TYPE_CHECKING:
    from runfold.controller.policies import Policies
    from runfold.events.base import Cause, Json
    from runfold.events.failures import Failure
    from runfold.events.state import Group, RunState
    from runfold.events.transitions import AnyTransition, StateName

Step = tuple["AnyTransition", ...]


def news(state: RunState, otherwise: Cause) -> Cause:
    """Return the input that last moved the group on."""
    return state.group.news if state.group is not None and state.group.news is not None else otherwise


def change(
    state: RunState, to_state: StateName, reason: str, cause: Cause | None = None, num_workers: int | None = None
) -> StateChanged:
    """Return the change to another state; its cause is the group's news, unless one is given."""
    return StateChanged(
        from_state=state_name(state.phase),
        to_state=to_state,
        num_workers=num_workers,
        cause=relative(cause if cause is not None else news(state, state.phase.cause), state.n),
        reason=reason,
    )


def fail(state: RunState, failures: tuple[Failure, ...], policies: Policies) -> Step:
    """Deal with failures: decided by the policy, after the gate that is asked before was."""
    decided = decide_failure(state, failures, policies)
    first = decided[0] if decided else None
    if not isinstance(first, FailureDecided) or first.decision == "noop":
        return decided
    about: dict[str, Json] = {
        "attempt": state.attempt,
        "decision": first.decision,
        "error": first.failure.error.headline,
        "rank": first.failure.rank,
    }
    answer = passed(state, FAILURE, first.failure.cause, about)
    if isinstance(answer, tuple):
        return answer
    error = gate_failed(answer, state, FAILURE)
    if error is None:
        return decided
    reason = f"{first.reason}; the gate {FAILURE} raised {error.headline}: the run ends"
    decision = replace(first, decision="raise", budget=None, spent=0, limit=0, reason=reason)
    return (decision, shut_down_errored(state, first.failure, first.cause, reason))


def finished(state: RunState, group: Group) -> Step:
    """Finish once every checkpoint that is on its way is committed, or given up."""
    if sealing(state):
        return ()
    end = _finish(state, group)
    return (*doubt(state, group, end.cause), end)


def _finish(state: RunState, group: Group) -> StateChanged:
    returned = sum(rank.phase == "returned" for rank in group.ranks)
    every = "every rank returned" if len(group.ranks) > 1 else "the rank returned"
    reason = (
        every
        if returned == len(group.ranks)
        else f"{returned} of {len(group.ranks)} ranks returned, the others' failures were passed over"
    )
    return StateChanged(
        from_state=state_name(state.phase),
        to_state="shutting_down",
        next="finished",
        deadline_t=state.t + state.job.timeouts.shutdown_deadline_s,
        cause=relative(news(state, state.phase.cause), state.n),
        reason=reason,
    )
