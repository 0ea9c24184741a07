"""When a source says that something happened, on the run's clock."""

from __future__ import annotations

from runfold.events.entry import Entry
from runfold.events.facts import Fact, RunnerReady


class Clocks:
    """The clocks of the sources heard so far: a runner's is known from its `RunnerReady` on."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, int], float] = {}

    def hear(self, entry: Entry, item: RunnerReady) -> None:
        """Learn a runner's clock: what it said then was heard at once, or so it is taken."""
        if item.clock_s:
            known = self._offsets.get((item.source, item.incarnation))
            offset = entry.t - item.clock_s
            # The smallest delay ever seen tells most of the clock itself.
            self._offsets[item.source, item.incarnation] = offset if known is None else min(known, offset)

    def when(self, entry: Entry, item: Fact) -> float:
        """Return when a fact happened; when it was folded, while its source's clock is not known."""
        offset = self._offsets.get((item.source, item.incarnation))
        if offset is None or not item.clock_s:
            return entry.t
        return min(entry.t, max(0.0, item.clock_s + offset))
