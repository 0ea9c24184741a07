"""Looking at ranks: their stacks are asked for when they make no progress, and when somebody wants to see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.controller.words import listed
from runfold.events.base import relative
from runfold.events.edges import GROUP_AT_WORK, state_name
from runfold.events.failures import ErrorInfo, Failure
from runfold.events.state import OVER, Preempting, Running
from runfold.events.tasks import STACKS, Task
from runfold.events.transitions import TaskOrdered

if TYPE_CHECKING:
    from runfold.events.base import Cause
    from runfold.events.state import Group, Rank, RunState, Stuck

STACKS_TIMEOUT_S: Final = 15.0
"""How long the stacks of ranks are waited for before what is to be done is done without them."""


def look(state: RunState) -> tuple[TaskOrdered, ...]:
    """Ask for the stacks of ranks that make no progress, before anything is decided about them."""
    group = state.group
    if group is None or group.stuck is None or group.stuck.looked or not isinstance(state.phase, Running | Preempting):
        return ()
    ranks = listed([f"rank {rank}" for rank in group.stuck.ranks])
    why = f"{ranks} made no report for {group.stuck.quiet_s:g} s"
    return looks(state, relative(group.stuck.cause, state.n), why)


def looks(state: RunState, cause: Cause, why: str, only: frozenset[int] | None = None) -> tuple[TaskOrdered, ...]:
    """Return the orders to look at every rank at work, or at those of the runners of `only`: one for each runner."""
    group = state.group
    if group is None or state_name(state.phase) not in GROUP_AT_WORK:
        return ()
    deadline_t = round(state.t + STACKS_TIMEOUT_S, 6)
    sources = dict.fromkeys(
        rank.source for rank in group.ranks if _can_be_seen(group, rank) and (only is None or rank.rank in only)
    )
    return tuple(
        TaskOrdered(
            task=Task(
                id=f"{STACKS}-{state.attempt}.{group.looks + k + 1}",
                kind=STACKS,
                arguments={"source": source},
                deadline_t=deadline_t,
            ),
            cause=cause,
            reason=f"{why}: the stacks of the ranks on {source} are asked for",
        )
        for k, source in enumerate(sources)
    )


def _can_be_seen(group: Group, rank: Rank) -> bool:
    places = {place.source: place for place in group.places}
    return rank.phase not in OVER and rank.phase != "waiting" and places[rank.source].healthy


# --- what was found


def hangs(state: RunState, group: Group) -> tuple[Failure, ...]:
    """Return the failures of ranks that made no progress through the whole `progress_timeout_s`, once they were seen.

    A rank that waits for others in a collective is not to blame while one does not.
    """
    stuck = group.stuck
    if stuck is None or stuck.limit_s is None or stuck.quiet_s < stuck.limit_s or is_looking(state):
        return ()
    return tuple(_hang(group, stuck, rank, state.t) for rank in _to_blame(group, stuck))


def is_looking(state: RunState) -> bool:
    """Whether stacks are still to come: every order for them has an end, or gets one by its deadline."""
    return bool(look(state)) or any(one.task.kind == STACKS for one in state.tasks)


def _to_blame(group: Group, stuck: Stuck) -> list[Rank]:
    running = [rank for rank in group.ranks if rank.phase == "running"]
    named = [rank for rank in running if rank.rank in stuck.ranks]
    waiting = {one.rank for one in group.seen if one.doing == "collective"}
    seen = {one.rank for one in group.seen}
    for candidates in (named, [rank for rank in running if rank.rank in seen]):
        if found := [rank for rank in candidates if rank.rank not in waiting]:
            return found
    return named


def _hang(group: Group, stuck: Stuck, rank: Rank, t: float) -> Failure:
    seen = next((one for one in group.seen if one.rank == rank.rank and one.life == rank.life), None)
    who = f"no report for {stuck.quiet_s:g} s"
    if rank.rank not in stuck.ranks:
        ranks = listed([f"rank {number}" for number in stuck.ranks])
        who += f" from {ranks}, which {'waits' if len(stuck.ranks) == 1 else 'wait'} for it"
    what = f"; it {seen.words}" if seen is not None else ""
    return Failure(
        kind="hang",
        attempt=group.attempt,
        node=rank.node,
        error=ErrorInfo(
            type="NoProgress",
            message=f"{who}, and timeouts.progress_timeout_s is {stuck.limit_s:g}{what}",
            kind="hang",
            where=seen.where if seen is not None else None,
            blob=seen.stacks if seen is not None else None,
        ),
        t=t,
        cause=stuck.cause,
        rank=rank.rank,
        life=rank.life,
    )
