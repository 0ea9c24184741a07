"""The newest assignment of each run: what arrives late or again is left out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.nats.cells import Cell, assignment_cells
from runfold.events.nats.connection import Connection
from runfold.events.nats.consume import Follower

_LOG: Final = logging.getLogger("runfold.workers")
_DECODER: Final = msgspec.json.Decoder(Assignment)


class Newest:
    """Knows which assignment of each run was the newest so far, by (epoch, n, forced)."""

    def __init__(self) -> None:
        self._order: dict[str, tuple[int, int, int]] = {}

    def take(self, run: str, data: bytes) -> Assignment | None:
        """Return the assignment of `data` if it is news; None if it is not, or cannot be read."""
        try:
            assignment = _DECODER.decode(data)
        except msgspec.DecodeError as error:
            _LOG.warning("%s: an assignment that cannot be read is ignored: %s", run, error)
            return None
        order = (assignment.epoch, assignment.n, assignment.forced)
        if assignment.run != run or order <= self._order.get(run, (0, -1, 0)):
            return None
        # No more than this is kept of the runs that are over: their last word may come again.
        self._order[run] = order
        return assignment


def follow_assignments(connection: Connection, on_news: Callable[[Assignment], None], *, run: str = "*") -> Follower:
    """Call `on_news` with each assignment newer than the one before it, of one run or of all; started.

    `on_news` must not raise. The caller closes what is returned.
    """
    newest = Newest()

    def deliver(cell: Cell) -> None:
        if cell.data is not None and (news := newest.take(cell.key, cell.data)) is not None:
            on_news(news)

    return assignment_cells(connection).follow(deliver, key=run)
