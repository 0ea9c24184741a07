"""What becomes of a fact: by its number within its source's incarnation, then by what it speaks of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.events.facts import (
    CapacityChanged,
    CheckpointSealed,
    PlaceReplaced,
    PoolFact,
    PreemptionCancelled,
    PreemptionNoticed,
    RankFact,
    RunnerReady,
    TaskEnded,
)
from runfold.events.tasks import find_task, seal_id

if TYPE_CHECKING:
    from runfold.events.facts import AnyFact, Fact
    from runfold.events.state import Group, RunState, Source, Verdict

ABOUT_NODES: Final = (CapacityChanged, PreemptionNoticed, PreemptionCancelled)
"""Facts that speak of nodes, not of an attempt: true whichever attempt the source had in mind."""

OF_PLACES: Final = (PlaceReplaced, RunnerReady)
"""Facts that may count in a later attempt which has kept its places: see `_of_kept`."""


def numbering(source: Source | None, folded: int, item: Fact) -> Verdict:
    """Judge a fact by incarnation and number; `folded` is the last number folded of its source."""
    if source is None:
        return "foreign"
    if item.incarnation != source.incarnation:
        return "stale" if item.incarnation < source.incarnation else "foreign"
    if item.number != folded + 1:
        return "repeat" if item.number <= folded else "gap"
    return "folded"


def standing(state: RunState, item: AnyFact) -> Verdict:
    """Judge a fact that is the next of its source by the attempt, rank and life it speaks of."""
    if isinstance(item, RankFact):
        return rank_standing(state, state.group, item)
    if isinstance(item, CheckpointSealed | TaskEnded):
        return _task_standing(state, item)
    if isinstance(item, PoolFact) and item.source != state.supervisor:
        return "foreign"
    if isinstance(item, ABOUT_NODES):
        return "folded"
    return _attempt_standing(state, item)


def _task_standing(state: RunState, item: CheckpointSealed | TaskEnded) -> Verdict:
    """Judge the end of a task: it counts once, whichever attempt its source had in mind."""
    wanted = seal_id(item.name) if isinstance(item, CheckpointSealed) else item.task
    found = find_task(state.tasks, wanted)
    return "folded" if found is not None and found.end is None else "stale"


def _attempt_standing(state: RunState, item: Fact) -> Verdict:
    if item.attempt == state.attempt and state.group is not None:
        return "folded"
    if item.attempt < state.attempt and _of_kept(state.group, item):
        return "folded"
    return "stale" if item.attempt < state.attempt else "foreign"


def _of_kept(group: Group | None, item: Fact) -> bool:
    """Whether it tells of a place that was looked for, or of a runner that was starting, when the attempt began."""
    if group is None or not group.kept or group.layout:
        return False
    if isinstance(item, PlaceReplaced):
        known = 0 <= item.place < len(group.places) and item.left is not None
        return known and group.places[item.place].left == item.left
    if not isinstance(item, RunnerReady):
        return False
    return any(
        place.left is not None or (place.ready is None and place.source == item.source) for place in group.places
    )


def rank_standing(state: RunState, group: Group | None, item: RankFact) -> Verdict:
    """Judge a fact about a rank by the ranks of the present attempt."""
    if group is None or item.attempt != state.attempt:
        return _attempt_standing(state, item)
    if not 0 <= item.rank < len(group.ranks):
        return "foreign"
    rank = group.ranks[item.rank]
    if item.source != rank.source:
        return "foreign"
    if item.life != rank.life:
        return "stale" if item.life < rank.life else "foreign"
    return "folded"
