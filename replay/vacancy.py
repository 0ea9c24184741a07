"""Whether a pool has room for an elastic run that waits between two attempts, by what it said last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.elastic import fitting_in
from runfold.events.elastic import come_back
from runfold.events.facts import CapacityChanged, PreemptionCancelled
from runfold.events.transitions import NodeAdmitted, NodeExcluded, RunAccepted, StateChanged

if TYPE_CHECKING:
    from runfold.events.entry import AnyInput
    from runfold.events.job import Job
    from runfold.events.transitions import AnyTransition


class Vacancy:
    """What is said of nodes, and which of them the run stays off. One of a fixed size never waits for room here."""

    def __init__(self) -> None:
        self._job: Job | None = None
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
        """Take the run's job, and which nodes it stays off."""
        if isinstance(item, RunAccepted):
            self._job = item.job
        elif isinstance(item, StateChanged):
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
        told, job = self._told, self._job
        if told is None or job is None or not job.scaling.elastic:
            return False
        return fitting_in(told, told.slots, self._taken | self._excluded, job) < job.scaling.min_workers
