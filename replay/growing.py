"""A timeline while its log grows: rows are given as soon as they are complete, and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runfold.events.entry import Entry
from runfold.replay.blocks import Built, Key
from runfold.replay.rows import Row
from runfold.replay.timeline import RowMaker, numbered, with_gaps


class Growing:
    """The rows of a log that goes on. What followed from a failure stands where it was heard of."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._maker = RowMaker(self._entries, None)
        self._numbers: dict[Key, int] = {}
        self._count = 0
        self._until = 0.0

    @property
    def entries(self) -> int:
        """How many entries were taken."""
        return len(self._entries)

    def take(self, entry: Entry) -> tuple[Row, ...]:
        """Return the rows that one more entry completes; reports wait for what follows them, or for `flush`."""
        self._entries.append(entry)
        return tuple(self._rows(self._maker.take(entry)))

    def flush(self) -> tuple[Row, ...]:
        """Return the row of the reports that wait."""
        return tuple(self._rows(self._maker.flush()))

    def _rows(self, built: Iterable[Built]) -> Iterator[Row]:
        for one in built:
            self._count += 1
            self._numbers.update((key, self._count) for key in one.holds)
            row = numbered(one.row, self._count, self._numbers)
            (row,) = with_gaps(iter((row,)), self._until)
            self._until = max(self._until, row.until_t)
            yield row
