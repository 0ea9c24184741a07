"""Whether a pool has room for an elastic run that waits between two attempts, by what it said last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.elastic import come_back
from runfold.events.facts import CapacityChanged, PreemptionCancelled
from runfold.events.transitions import NodeAdmitted, NodeExcluded, StateChanged

if TYPE_CHECKING:
    from runfold.events.entry import AnyInput
    from runfold.events.transitions import AnyTransition


class Vacancy:
    """What is said of nodes. `least`: the fewest ranks that the run may have, 0 for one of a fixed size."""

    def __init__(self) -> None:
        self.least = 0
        self._told: CapacityChanged | None = None
        self._taken: set[str] = set()
        self._excluded: set[str] = set()

    def hear(self, item: AnyInput) -> None:
        """Take what the pool says."""
        if isinstance(item, CapacityChanged):
            before = None if self._told is None else self._told.slots
            self._taken.difference_update(come_back(before, item.slots))
            self._told = item
        elif isinstance(item, PreemptionCancelled):
            self._taken.difference_update(item.nodes)

    def decide(self, item: AnyTransition) -> None:
        """Take which nodes the run stays off."""
        if isinstance(item, StateChanged):
            if item.to_state == "preempting":
                self._taken.update(item.nodes)
            elif (item.from_state, item.to_state) == ("preempting", "running"):
                self._taken.clear()
        elif isinstance(item, NodeExcluded):
            self._excluded.add(item.node)
        elif isinstance(item, NodeAdmitted):
            self._excluded.discard(item.node)
            self._taken.discard(item.node)

    def lacks(self) -> bool:
        """Whether there is no room for the fewest ranks on nodes that the run does not stay off."""
        told = self._told
        if told is None:
            return False
        fits = [] if told.fits is None else [told.fits]
        by_node = told.slots if told.room is None and told.fits is None else told.room
        if by_node is not None:
            off = self._taken | self._excluded
            fits.append(sum(count for node, count in by_node.items() if node not in off))
        return min(fits) < self.least
