"""Whether a group could be placed off the nodes that are taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.elastic import fitting

if TYPE_CHECKING:
    from runfold.events.state import Place, RunState


def has_room(state: RunState) -> bool:
    """Whether the pool has said that it has room for the group off the nodes that it stays off."""
    fits = fitting(state)
    return fits is not None and fits >= max(state.job.scaling.min_workers, 1)


def is_left(state: RunState, place: Place) -> bool:
    """Whether a place is given up at the next chance: its node is about to be taken back, and there are others."""
    return state.notice is not None and place.node in state.notice.nodes and has_room(state)
