"""Failures that are only effects: broken connections and ends that nobody saw wait a moment for their cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.controller.failing import open_failures
from runfold.controller.replicas import size_of
from runfold.controller.words import listed
from runfold.events.replicas import hit_by, replica_of
from runfold.events.state import Preempting, Running

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.failures import Failure
    from runfold.events.state import Group, RunState

CAUSE_AWAITED_MAX_S: Final = 5.0
"""How long after a broken connection nothing is decided, for its cause to be told: Ray takes 3 s to lose a node."""
_MAY_TELL: Final = frozenset({"starting", "waiting", "running"})
_SAY_ALL: Final = frozenset(
    {
        "CollectiveMismatchError",
        "CollectiveTimeoutError",
        "BroadcastCollectiveTimeoutError",
        "CollectiveTooLargeError",
    }
)
"""Failed collectives that name what was wrong: nothing is to be learned of them by waiting."""


def decidable(state: RunState, failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """Return the open failures that can be decided upon: their cause is known, or nobody could tell it, or it is time.

    What is decided then spends one unit of one budget, and knows which places are gone. A replica group waits for its
    own ranks alone.
    """
    if not any(map(_is_effect, failures)) or not _looks(state):
        return failures
    return tuple(failure for failure in failures if _awaited_until(state, failure, failures) is None)


def cause_deadline(state: RunState) -> float | None:
    """Return until when the first open failure waits for its cause; None when none does."""
    return min((due_t for _, due_t in _waiting(state)), default=None)


def waiting_for_cause(state: RunState) -> str | None:
    """Return what is waited for before failures are decided upon, in words."""
    ranks = sorted({failure.rank for failure, _ in _waiting(state) if failure.rank is not None})
    if not ranks:
        return None
    who = f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks])}"
    return f"the cause of the failure of {who}: who knows it has {CAUSE_AWAITED_MAX_S:g} s to tell"


def _waiting(state: RunState) -> list[tuple[Failure, float]]:
    if not _looks(state):
        return []
    failures = open_failures(state)
    dues = ((failure, _awaited_until(state, failure, failures)) for failure in failures)
    return [(failure, due_t) for failure, due_t in dues if due_t is not None]


def _looks(state: RunState) -> bool:
    return state.group is not None and bool(state.group.failures) and isinstance(state.phase, Running | Preempting)


def _awaited_until(state: RunState, failure: Failure, failures: Iterable[Failure]) -> float | None:
    group = state.group
    if group is None or not _is_effect(failure):
        return None
    # Without replica groups all ranks are one.
    size = size_of(state) or len(group.ranks)
    hit = hit_by(group, failure, size)
    together = [one for one in failures if hit & hit_by(group, one, size)]
    if not all(map(_is_effect, together)) or not _may_be_told(group, together, hit, size):
        return None
    due_t = min(one.t for one in together) + CAUSE_AWAITED_MAX_S
    return due_t if due_t > state.t else None


def _is_effect(failure: Failure) -> bool:
    if failure.kind == "peer":
        return failure.error.type not in _SAY_ALL
    return _is_unseen(failure)


def _is_unseen(failure: Failure) -> bool:
    """Whether a rank ended and nobody saw how: who watches it is about to go as well."""
    return failure.error.type == "RankExited" and failure.exit_code is None and failure.signal is None


def _may_be_told(group: Group, failures: list[Failure], hit: frozenset[int], size: int) -> bool:
    """Whether a rank is left that has not told of it, or a runner that may be lost."""
    lost = {place.node for place in group.places if place.lost}
    if any(_is_unseen(failure) and failure.node not in lost for failure in failures):
        return True
    told = {failure.rank for failure in failures}
    return any(
        rank.phase in _MAY_TELL and rank.rank not in told and replica_of(rank.rank, size) in hit for rank in group.ranks
    )
