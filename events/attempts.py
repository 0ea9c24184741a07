"""Attempts: how one begins, is laid out, fails, and what is remembered of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.edges import START_OF_ATTEMPT, IllegalEdge, state_name
from runfold.events.evidence import slim
from runfold.events.failures import FAILURE_KINDS, masked
from runfold.events.keeping import at_ease, begun, next_attempt
from runfold.events.limits import ERRORS_INLINE_MAX_COUNT
from runfold.events.marks import Repeats
from runfold.events.notices import cancelled, stayed_off, taken_back
from runfold.events.replicas import lighthouse, opened, went_down
from runfold.events.state import Group, Rank, Scheduling, Spent

if TYPE_CHECKING:
    from runfold.events.base import Moment
    from runfold.events.failures import Budget, Failure
    from runfold.events.state import Place, RunState
    from runfold.events.transitions import (
        AttemptStarted,
        FailureDecided,
        FirstCauseRevised,
        GroupLaidOut,
        RankLaid,
    )


def attempt_started(state: RunState, transition: AttemptStarted, at: Moment) -> RunState:
    """Begin an attempt; its number is the next one."""
    if state_name(state.phase) not in START_OF_ATTEMPT:
        raise IllegalEdge(f"an attempt cannot begin while {state_name(state.phase)}")
    if transition.attempt != state.attempt + 1:
        raise IllegalEdge(f"attempt {transition.attempt} after attempt {state.attempt}: they are counted")
    places: tuple[Place, ...] = ()
    if transition.kept:
        places = _kept_places(state, transition, at.n)
    notice, away = state.notice, state.away
    moved = not transition.kept or bool(transition.vacated)
    acted_on = state.failure is not None and state.failure.kind == "preempted" and moved
    if notice is not None and (acted_on or notice.deadline_t <= at.t):
        # One that is gone by now need not be stayed off: whatever comes back under its name is another.
        off = stayed_off(state, notice)
        here = tuple(node for node in off if state.capacity is None or node in state.capacity)
        away, notice = taken_back(away, here), None
    elif notice is not None and notice.former and not transition.kept:
        notice = cancelled(notice, tuple(set(notice.nodes).difference(stayed_off(state, notice))))
    return replace(
        state,
        attempt=transition.attempt,
        group=Group(
            attempt=transition.attempt,
            num_workers=transition.num_workers,
            places=places,
            label_selector=transition.label_selector,
            kept=transition.kept,
        ),
        notice=notice,
        away=away,
        return_value=None,
        return_blob=None,
        checkpoints=next_attempt(state),
    )


def _kept_places(state: RunState, transition: AttemptStarted, n: int) -> tuple[Place, ...]:
    """Return the places of the attempt before; those that are given up by this entry or were before are `left`."""
    group, vacated = state.group, frozenset(transition.vacated)
    if group is None or group.released:
        raise IllegalEdge(f"attempt {transition.attempt} cannot keep places: none are held")
    gone = frozenset(i for i, place in enumerate(group.places) if place.left is not None)
    lost = [place.node for i, place in enumerate(group.places) if place.lost and i not in vacated | gone]
    if lost or not vacated <= frozenset(range(len(group.places))) - gone or len(vacated | gone) == len(group.places):
        raise IllegalEdge(f"attempt {transition.attempt} cannot keep places: they are not all held by healthy runners")
    return tuple(
        [
            replace(place, door=0, left=n if i in vacated else place.left) if place.door or i in vacated else place
            for i, place in enumerate(group.places)
        ]
    )


def laid_out(state: RunState, transition: GroupLaidOut, at: Moment) -> RunState:
    """Give ranks their places; from here on they have `import_timeout_s` to start."""
    group = state.group
    if not isinstance(state.phase, Scheduling) or group is None or group.layout:
        raise IllegalEdge(f"a group cannot be laid out while {state_name(state.phase)}, nor twice in an attempt")
    places = group.places
    if transition.attempt != group.attempt or not all(place.ready is not None for place in places):
        raise IllegalEdge(f"attempt {transition.attempt} cannot be laid out: not every runner of it is ready")
    ranks = tuple([_starting(laid, places[laid.place]) for laid in transition.layout])
    laid_out = replace(
        begun(state, group),
        places=opened(state, _on_one_clock(places)),
        layout=transition.layout,
        addr=transition.addr,
        port=transition.port,
        ranks=ranks,
        early={},
        waiting=None,
        arguments=transition.arguments,
        lighthouse=lighthouse(state, places[transition.layout[0].place]) if transition.layout else "",
    )
    return replace(
        state,
        group=laid_out,
        phase=replace(state.phase, deadline_t=at.t + state.job.timeouts.import_timeout_s),
        homes=tuple([rank.node for rank in ranks]),
        fired=(),
    )


def _starting(laid: RankLaid, place: Place) -> Rank:
    return Rank(rank=laid.rank, life=laid.life, node=place.node, source=place.source, phase="starting")


def _on_one_clock(places: tuple[Place, ...]) -> tuple[Place, ...]:
    """Give all runners offsets that differ only by what they measured, not by how long their facts were under way.

    Each `offset_s` is the true one plus a delay; the smallest delay seen serves for all.
    """
    ready = [place.ready for place in places if place.ready is not None]
    base_s = min([one.offset_s - one.measured_s for one in ready], default=0.0)
    return tuple([_offset(place, base_s) for place in places])


def _offset(place: Place, base_s: float) -> Place:
    ready = place.ready
    if ready is None or ready.offset_s == base_s + ready.measured_s:
        return place
    return replace(place, ready=replace(ready, offset_s=base_s + ready.measured_s))


# --- failures


def failure_decided(state: RunState, transition: FailureDecided, at: Moment) -> RunState:
    """Deal with what failed in an attempt; its end is decided with it, unless only replica groups are replaced."""
    group, failure = state.group, transition.failure
    if group is None or group.handled or failure.attempt != group.attempt:
        raise IllegalEdge(f"the end of attempt {failure.attempt} is decided already, or it never began")
    if transition.decision == "noop":
        rest = replace(group, failures=(), stuck=None)
        return replace(state, group=rest, checkpoints=at_ease(state.checkpoints))
    told = group.failures
    budgets = state.budgets
    if transition.budget is not None:
        budgets = {**budgets, transition.budget: Spent(spent=transition.spent, limit=transition.limit)}
    if transition.decision == "replace":
        state = went_down(state, group, transition, at.n)
        group = state.group
        if failure.kind == "preempted" and state.notice is not None:
            state = replace(state, away=taken_back(state.away, stayed_off(state, state.notice)), notice=None)
    else:
        group = replace(group, failures=(), stuck=None, handled=True)
    still_open = group.failures if group is not None else ()
    others = tuple([slim(one) for one in told if one.cause != failure.cause and one not in still_open])
    return replace(
        state,
        group=group,
        budgets=budgets,
        startup_streak=_streak(state, transition.budget),
        failure=failure,
        failure_t=at.t,
        others=others[: ERRORS_INLINE_MAX_COUNT - 1],
        repeats=repeated(state, failure),
        checkpoints=at_ease(state.checkpoints),
        platform_failures=_blamed(state.platform_failures, failure.node, FAILURE_KINDS[failure.kind].platform),
        late=(),
    )


def _streak(state: RunState, budget: Budget | None) -> int:
    """Return how many failures in a row were failures to start: one of another kind shows that ranks got further."""
    return 0 if budget not in (None, "startup") else state.startup_streak + (budget == "startup")


def _blamed(failures: dict[str, int], node: str, platform: bool) -> dict[str, int]:
    """Count a platform failure against its node; errors of the user's code are nobody's node's fault."""
    return {**failures, node: failures.get(node, 0) + 1} if platform and node else failures


def repeated(state: RunState, failure: Failure) -> Repeats:
    """Return how many times in a row this failure has come at this step, itself counted."""
    signature = f"{failure.kind} at step {step_of(state, failure)}: {masked(failure.error.headline)}"
    before = state.repeats
    same = before is not None and before.signature == signature
    return Repeats(signature=signature, count=before.count + 1 if before is not None and same else 1)


def step_of(state: RunState, failure: Failure) -> int | None:
    """Return the step at which a rank failed: the one it named, else the index of its last report."""
    group = state.group
    if group is None or failure.rank is None or failure.rank >= len(group.ranks):
        return None
    rank = group.ranks[failure.rank]
    return rank.index if rank.step is None else rank.step


def revised(state: RunState, transition: FirstCauseRevised) -> RunState:
    """Let another failure of the same attempt count as the first; the one before stands beside it."""
    if state.failure is None or state.failure.attempt != transition.attempt:
        raise IllegalEdge(f"attempt {transition.attempt} is not the one whose failure was decided last")
    others = (slim(state.failure), *state.others)[: ERRORS_INLINE_MAX_COUNT - 1]
    return replace(state, failure=transition.failure, others=others)
