"""Failures that are only effects: broken connections and collectives wait a moment for what broke them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.controller.failing import open_failures
from runfold.events.state import Preempting, Running

if TYPE_CHECKING:
    from runfold.events.failures import Failure
    from runfold.events.state import RunState

CAUSE_AWAITED_MAX_S: Final = 5.0
"""How long after a broken connection nothing is decided, for its cause to be told: Ray takes 3 s to lose a node."""
_MAY_TELL: Final = frozenset({"starting", "waiting", "running"})


def cause_deadline(state: RunState) -> float | None:
    """Return until when open failures wait for their cause; None when they do not: it is known, or nobody could tell.

    What is decided by then spends one unit of one budget, and knows which places are gone.
    """
    group = state.group
    if group is None or not group.failures or not isinstance(state.phase, Running | Preempting):
        return None
    return _awaited(state, open_failures(state))


def awaits_cause(state: RunState, failures: tuple[Failure, ...]) -> bool:
    """Whether these open failures wait for their cause."""
    return _awaited(state, failures) is not None


def _awaited(state: RunState, failures: tuple[Failure, ...]) -> float | None:
    group = state.group
    if group is None or not failures or any(failure.kind != "peer" for failure in failures):
        return None
    told = {failure.rank for failure in failures}
    if not any(rank.phase in _MAY_TELL and rank.rank not in told for rank in group.ranks):
        return None
    due_t = min(failure.t for failure in failures) + CAUSE_AWAITED_MAX_S
    return due_t if due_t > state.t else None
