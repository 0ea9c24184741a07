"""What a pool has room for, for one run, and how another number of slots is shared out. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runfold.events.base import Value


class Room(Value, frozen=True, kw_only=True):
    """What is said to a run: see `CapacityChanged`, whose fields these are."""

    slots: dict[str, int]
    whole: dict[str, int] | None = None
    room: dict[str, int] | None = None
    fits: int | None = None
    slices: int | None = None


def largest(most: int, can_be_placed: Callable[[int], bool]) -> int:
    """Return the largest group of at most `most` ranks that can be placed; what is too large stays so when it grows."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if can_be_placed(middle):
            low = middle
        else:
            high = middle - 1
    return low


def shared(slots: int, nodes: Mapping[str, int]) -> dict[str, int] | None:
    """Share slots out among nodes that have at most so many each, node after node; None when they do not go in.

    A node that is alone may have any number.
    """
    if len(nodes) == 1:
        return dict.fromkeys(nodes, slots)
    given: dict[str, int] = {}
    for node, most in nodes.items():
        given[node] = min(most, slots)
        slots -= given[node]
    return given if slots == 0 else None
