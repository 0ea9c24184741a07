"""Failures of a group: which of them count, which is the first cause, and what is done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from runfold.controller.budgets import backoff_s
from runfold.controller.elastic import can_do_without, keeps_its_size
from runfold.controller.looking import hangs
from runfold.controller.places import kept_without, waits_on_places, what_is_kept
from runfold.controller.policies import Choice
from runfold.controller.replicas import failing, replacing_words, vacated
from runfold.controller.words import listed
from runfold.events.base import relative
from runfold.events.edges import state_name
from runfold.events.failures import NO_OTHER_PLACE, ErrorInfo, Failure, cause_key, first_cause
from runfold.events.state import Preempting, Scheduling
from runfold.events.transitions import FailureDecided, FirstCauseRevised, NodeExcluded, StateChanged

if TYPE_CHECKING:
    from runfold.controller.policies import Policies
    from runfold.events.base import Cause
    from runfold.events.failures import FailureKind
    from runfold.events.state import Group, RunState
    from runfold.events.transitions import AnyTransition


LOSS_SEEN_WITHIN_S: Final = 5.0
"""How long after its peers' connections broke the end of a rank or a runner may be told, and still be what broke
them."""
_SEEN_BY_OTHERS: Final[frozenset[FailureKind]] = frozenset({"runner", "node", "signal", "oom", "exit"})
"""What no rank tells of itself: who watches it notices when its peers have noticed already."""


# --- what counts


def open_failures(state: RunState) -> tuple[Failure, ...]:
    """Return the failures of the group that count and are not dealt with, each with the kind it is known by now."""
    group = state.group
    if group is None or group.handled:
        return ()
    if not group.failures and group.stuck is None and state.checkpoints.trouble is None:
        return ()
    told = [_as_preempted(state, failure) for failure in group.failures if not _moot(group, failure)]
    return (*told, *hangs(state, group), *_storage(state, group))


def _moot(group: Group, failure: Failure) -> bool:
    """Whether a runner went when all its ranks had returned: their results are in, nothing is lost."""
    if failure.rank is not None or failure.kind not in ("runner", "node"):
        return False
    ranks = [rank for rank in group.ranks if failure.node in ("", rank.node)]
    return bool(ranks) and all(rank.phase == "returned" for rank in ranks)


def _as_preempted(state: RunState, failure: Failure) -> Failure:
    """Name a reclaim for what it is: a runner or rank that was killed on a node about to be taken back."""
    notice = state.notice
    if notice is None or failure.node not in notice.nodes or failure.kind not in ("runner", "node", "signal"):
        return failure
    return replace(failure, kind="preempted")


def _storage(state: RunState, group: Group) -> tuple[Failure, ...]:
    trouble = state.checkpoints.trouble
    if trouble is None:
        return ()
    error = replace(trouble.error, kind="storage")
    return (Failure(kind="storage", attempt=group.attempt, node="", error=error, t=state.t, cause=trouble.cause),)


def timed_out(state: RunState) -> Failure | None:
    """Return the failure of a group that did not start in time, if its timer has fired."""
    group = state.group
    if not state.fired or group is None:
        return None
    timeouts = state.job.timeouts
    if group.layout and all(rank.started for rank in group.ranks):
        return None  # what they wait for, the word where to begin, has a deadline of its own
    if group.layout:
        late = [f"rank {rank.rank} on {rank.node}" for rank in group.ranks if not rank.started]
        message = f"{listed(late)} did not start within timeouts.import_timeout_s ({timeouts.import_timeout_s:g} s)"
        node = next((rank.node for rank in group.ranks if not rank.started), "")
    else:
        unready = [place.node for place in group.places if not place.healthy]
        message = f"no runner on {listed(unready)} within timeouts.start_timeout_s ({timeouts.start_timeout_s:g} s)"
        node = unready[0] if unready else ""
    return Failure(
        kind="start_timeout",
        attempt=group.attempt,
        node=node,
        error=ErrorInfo(type="StartTimeout", message=message, kind="start_timeout"),
        t=state.t,
        cause=state.fired[0].cause,
    )


def reclaimed(state: RunState, phase: Preempting, cause: Cause, node: str) -> Failure:
    """Return the failure of a group whose nodes are taken back while its ranks are still at work."""
    nodes = ", ".join(phase.nodes)
    return Failure(
        kind="preempted",
        attempt=state.attempt,
        node=node,
        error=ErrorInfo(type="Preempted", message=f"{nodes} taken back before the ranks were done", kind="preempted"),
        t=state.t,
        cause=cause,
    )


def saved(state: RunState, phase: Preempting, node: str) -> Failure:
    """Return the failure of a group that has saved what it has before its nodes are taken back."""
    nodes, checkpoint = ", ".join(phase.nodes), state.checkpoint
    name = checkpoint.name if checkpoint is not None else "nothing"
    message = f"{nodes} will be taken back, {name} is committed, and the pool has room for the ranks elsewhere"
    return Failure(
        kind="preempted",
        attempt=state.attempt,
        node=node,
        error=ErrorInfo(type="Preempted", message=message, kind="preempted"),
        t=state.t,
        cause=state.checkpoints.last or phase.cause,
    )


# --- what is done


def decide_failure(state: RunState, failures: tuple[Failure, ...], policies: Policies) -> tuple[AnyTransition, ...]:
    """Return the transitions that deal with these failures; none when there are none."""
    first = first_cause(failures)
    if first is None or state.group is None:
        return ()
    choice = _paid(first) or policies.failure.choose(state, first)
    causes = {failure.cause for failure in failures}
    undecided = sum(failure.cause not in causes for failure in open_failures(state))
    others = max(state.group.failed - undecided, len(failures)) - 1
    wait_s = backoff_s(state, choice.budget, choice.spent)
    replicas = failing(state, failures) if choice.decision == "retry" else ()
    gone = None if replicas else kept_without(state, first, wait_s)
    what_now = replacing_words(state, replicas, wait_s) if replicas else _what_now(state, choice, gone, wait_s)
    reason = f"{words(state, first)}; {choice.reason}; {what_now}"
    cause = relative(first.cause, state.n)
    decided = FailureDecided(
        decision="replace" if replicas else choice.decision,
        failure=first,
        budget=choice.budget,
        spent=choice.spent,
        limit=choice.limit,
        others=others,
        replicas=replicas,
        vacated=vacated(state, failures, replicas),
        not_before_t=state.t + wait_s if replicas and wait_s > 0 else None,
        cause=cause,
        reason=reason,
    )
    if replicas and isinstance(state.phase, Preempting) and first.kind == "preempted":
        return (decided, _on_elsewhere(state, cause, reason))
    if choice.decision == "noop" or replicas:
        return (decided,)
    if choice.decision == "raise":
        return (decided, shut_down_errored(state, first, cause, reason))
    again = StateChanged(
        from_state=state_name(state.phase),
        to_state="rescheduling" if isinstance(state.phase, Scheduling) else "restarting",
        failure=first,
        not_before_t=state.t + wait_s,
        kept=waits_on_places(state, gone, wait_s),
        cause=cause,
        reason=reason,
    )
    return (decided, again)


def _paid(failure: Failure) -> Choice | None:
    """Return what is done about ranks that find no other place: beginning again costs nothing beyond their loss."""
    if failure.kind != "placement" or failure.error.type != NO_OTHER_PLACE:
        return None
    return Choice(decision="retry", reason="nothing more is spent: the loss was counted")


def _on_elsewhere(state: RunState, cause: Cause, reason: str) -> StateChanged:
    """Return the change back to RUNNING: who was on the nodes that go is replaced, and the others train on."""
    return StateChanged(from_state=state_name(state.phase), to_state="running", cause=cause, reason=reason)


def shut_down_errored(state: RunState, failure: Failure, cause: Cause, reason: str) -> StateChanged:
    """Return the change that ends the run for a failure."""
    return StateChanged(
        from_state=state_name(state.phase),
        to_state="shutting_down",
        next="errored",
        failure=failure,
        deadline_t=state.t + state.job.timeouts.shutdown_deadline_s,
        cause=cause,
        reason=reason,
    )


def words(state: RunState, failure: Failure) -> str:
    """Return who failed and of what, in words."""
    who = f"rank {failure.rank}" if failure.rank is not None else failure.node or f"pool {state.job.pool}"
    first = " first" if state.group is not None and state.group.num_workers > 1 else ""
    return f"{who} failed{first}: {failure.error.headline}"


def _what_now(state: RunState, choice: Choice, gone: tuple[int, ...] | None, wait_s: float) -> str:
    if choice.decision == "noop":
        return "the run goes on"
    if choice.decision == "raise":
        return "the run ends"
    if gone is not None and keeps_its_size(state):
        return what_is_kept(state, gone, wait_s)
    return f"starting again on new places{f' in {wait_s:g} s at the earliest' if wait_s > 0 else ''}"


# --- what is learned later


def revise(state: RunState) -> tuple[AnyTransition, ...]:
    """Return the revision of the first cause that late evidence calls for. Spends nothing."""
    was = state.failure
    if was is None or not state.late:
        return ()
    # What happened after the decision cannot have brought about what was decided on.
    late = [
        evidence.failure
        for evidence in state.late
        if evidence.failure.t <= state.failure_t + _seen_late_s(was, evidence.failure)
    ]
    best = first_cause(failure for failure in late if failure.attempt == was.attempt)
    if best is None or cause_key(best) >= cause_key(was):
        return ()
    reason = f"{words(state, best)}; it came before what was taken for the first cause: {words(state, was)}"
    return (
        FirstCauseRevised(
            attempt=was.attempt, failure=best, was=was, cause=relative(best.cause, state.n), reason=reason
        ),
    )


def _seen_late_s(was: Failure, failure: Failure) -> float:
    """Return how much later than its effects a loss may be told: broken connections are noticed at once."""
    return LOSS_SEEN_WITHIN_S if was.kind == "peer" and failure.kind in _SEEN_BY_OTHERS else 0.0


def exclude(state: RunState) -> tuple[AnyTransition, ...]:
    """Return the exclusion of a node that failed too often, unless the run needs it."""
    limit, failure = state.job.failure.node_exclude_after, state.failure
    if limit is None or failure is None or state.capacity is None:
        return ()
    for node, count in state.platform_failures.items():
        if count < limit or node in state.excluded or not can_do_without(state, node):
            continue
        reason = (
            f"{node} failed {count} time{'s' if count != 1 else ''}, and failure.node_exclude_after is {limit}; "
            f"later attempts stay off it until it is admitted again"
        )
        return (NodeExcluded(node=node, failures=count, cause=relative(failure.cause, state.n), reason=reason),)
    return ()
