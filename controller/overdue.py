"""Checkpoints that wait for ranks: who has not passed, and what is said when that lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.looking import is_looking, looks
from runfold.controller.words import listed
from runfold.events.base import relative
from runfold.events.checkpoints import passed, ranks_in
from runfold.events.transitions import Warned

if TYPE_CHECKING:
    from runfold.events.base import Cause
    from runfold.events.checkpoints import Gathering
    from runfold.events.state import Group, Rank, RunState
    from runfold.events.transitions import AnyTransition


def missing(group: Group, one: Gathering) -> tuple[int, ...]:
    """Return the ranks that have not passed a checkpoint, and still may.

    Those of a replica group that is down will not: what the others have is whole without it. They begin behind it.
    """
    have = frozenset(ranks_in(one.ranks))
    expected = (rank for rank in group.ranks if rank.phase != "waiting")
    return tuple(rank.rank for rank in expected if rank.rank not in have and not passed(rank, one))


def overdue(state: RunState, group: Group) -> tuple[AnyTransition, ...]:
    """Look at the ranks that a checkpoint has waited for too long, then name them and where they are, once."""
    for one in state.checkpoints.gathering:
        if one.due is None or one.overdue:
            continue
        absent = missing(group, one)
        if not one.looked:
            limit_s = state.job.timeouts.checkpoint_timeout_s
            who = listed([f"rank {rank}" for rank in absent])
            why = f"{one.name} has waited for {who} for {limit_s:g} s"
            if orders := looks(state, relative(one.due, state.n), why, frozenset(absent)):
                return orders
        if not one.looked or not is_looking(state):
            return (_overdue(state, group, absent, one, one.due),)
    return ()


def _overdue(state: RunState, group: Group, absent: tuple[int, ...], one: Gathering, due: Cause) -> Warned:
    limit_s = state.job.timeouts.checkpoint_timeout_s
    where = listed([_where(group, group.ranks[rank]) for rank in absent])
    return Warned(
        about="overdue",
        checkpoint=one.name,
        ranks=absent,
        cause=relative(due, state.n),
        reason=f"{one.name} waits for {where} for more than timeouts.checkpoint_timeout_s ({limit_s:g} s)",
    )


def _where(group: Group, rank: Rank) -> str:
    seen = next((one for one in group.seen if one.rank == rank.rank and one.life == rank.life), None)
    what = f"; it {seen.words}" if seen is not None else ""
    return f"rank {rank.rank} on {rank.node} (last report {rank.index}{what})"
