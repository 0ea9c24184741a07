"""What the time of a run goes into: the names, what each means, and stretches of the run's clock that bear them.

Times are whole microseconds here, so that parts add up to their whole exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from runfold.events.base import Value

Use = Literal[
    "productive",
    "initialisation",
    "data",
    "checkpoint_save",
    "checkpoint_restore",
    "wasted_progress",
    "recovery",
    "preemption",
    "resize",
    "hang",
    "waiting_for_capacity",
    "teardown",
]

USES: Final[dict[Use, str]] = {
    "productive": "ranks trained, and what they did was kept or still may be",
    "initialisation": "the first group was placed, started and loaded",
    "data": "ranks waited for their data",
    "checkpoint_save": "ranks waited for a checkpoint to be saved",
    "checkpoint_restore": "ranks waited for a checkpoint to be restored",
    "wasted_progress": "ranks trained, and it was lost: no checkpoint of it was committed before the attempt ended",
    "recovery": "from a failure until the next attempt was in user code",
    "preemption": "the same, after nodes were taken back",
    "resize": "the group was stopped and started again at another size",
    "hang": "ranks made no progress",
    "waiting_for_capacity": "the group waited for room in its pool",
    "teardown": "the group was being released at the end",
}
"""Use → what it means. All but the first are badput."""

SPENT_ON: Final[dict[str, Use]] = {
    "data": "data",
    "checkpoint_save": "checkpoint_save",
    "checkpoint_restore": "checkpoint_restore",
}
"""What a rank may say that it waited for (`Reported.spent_s`) → the use."""


class Stretch(Value, frozen=True, kw_only=True):
    """A stretch of the run's clock, `start` to `end` (exclusive) in microseconds, and what it went into."""

    start: int
    end: int
    use: Use
    attempt: int

    @property
    def length(self) -> int:
        """Microseconds."""
        return self.end - self.start


class Window(Value, frozen=True, kw_only=True):
    """The time between two reports of a rank, and the uses that it says it was spent on, in microseconds."""

    start: int
    end: int
    spent: tuple[tuple[Use, int], ...]


def micros(t: float) -> int:
    """Return seconds of the run's clock as whole microseconds."""
    return round(t * 1_000_000)


def painted(stretches: Iterable[Stretch], start: int, end: int, use: Use) -> Iterator[Stretch]:
    """Yield the same stretches, of which `start` to `end` went into another use."""
    for one in stretches:
        low, high = max(one.start, start), min(one.end, end)
        if low >= high:
            yield one
            continue
        if one.start < low:
            yield _part(one, one.start, low)
        yield _part(one, low, high, use)
        if high < one.end:
            yield _part(one, high, one.end)


def carved(one: Stretch, windows: Sequence[Window]) -> Iterator[Stretch]:
    """Yield a stretch without what its windows (in order, apart from one another) say was spent otherwise.

    A rank says how long it waited, not when: it is taken from the beginning of its window.
    """
    at = one.start
    for window in windows:
        place, end = max(window.start, at), min(window.end, one.end)
        for use, length in window.spent:
            high = min(place + length, end)
            if high <= place:
                continue
            if at < place:
                yield _part(one, at, place)
            yield _part(one, place, high, use)
            at = place = high
    if at < one.end:
        yield _part(one, at, one.end)


def clipped(stretches: Iterable[Stretch], start: int, end: int) -> Iterator[Stretch]:
    """Yield what of the stretches lies between two moments."""
    for one in stretches:
        low, high = max(one.start, start), min(one.end, end)
        if low < high:
            yield _part(one, low, high)


def _part(one: Stretch, start: int, end: int, use: Use | None = None) -> Stretch:
    return Stretch(start=start, end=end, use=use or one.use, attempt=one.attempt)
