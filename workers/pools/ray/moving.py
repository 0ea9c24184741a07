"""Another place for a run that has lost one, from what it holds on a cluster already."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import msgspec

RETRY_S: Final = 1.0
"""How soon is looked again for where Ray has put bundles, and whether a node is still there."""


class Look(msgspec.Struct, frozen=True):
    """The nodes that the bundles of a run's own placement group were given on, by name; which nodes there are.

    `usable`: those that may be used; `suspect`: those not to be reached, although Ray has them still.
    """

    names: Sequence[str | None]
    there: Collection[str]
    usable: Collection[str]
    suspect: Collection[str]


async def found_again(
    count: int, look: Callable[[], Look], where: Callable[[], Awaitable[Sequence[str | None]]]
) -> tuple[list[int], str] | None:
    """Return so many bundles, by their numbers, with their node: of one that lost its runner alone, or moved by Ray.

    Ray puts the bundles of a node that is gone elsewhere, which `where` tells. None where that is no place for the
    demand: where the group is already, or where it stays off.
    """
    spare: str | None = None
    while True:
        seen = look()
        before, spare = spare, _spare(count, seen)
        if spare is not None and spare == before:
            return [index for index, name in enumerate(seen.names) if name == spare][:count], spare
        if spare is None:
            gone = [index for index, name in enumerate(seen.names) if name not in seen.there]
            if len(gone) >= count:
                now = await where()
                there = {index: name for index in gone if (name := now[index]) is not None and name in seen.there}
                for name, many in Counter(there.values()).items():
                    if many >= count and name in seen.usable:
                        return [index for index in there if there[index] == name][:count], name
                if len(there) == len(gone):
                    return None
            elif not seen.suspect:
                return None
        # A node with spare bundles may be gone as well: that is seen by then.
        await asyncio.sleep(RETRY_S)


def _spare(count: int, seen: Look) -> str | None:
    """Return a node that may be used on which the run has bundles enough that nothing runs in."""
    for name, many in Counter(seen.names).items():
        if many >= count and name in seen.usable and name not in seen.suspect:
            return name
    return None
