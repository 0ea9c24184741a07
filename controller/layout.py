"""Who is which rank: ranks keep their node where it is still there, and fill up node after node otherwise."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from runfold.events.transitions import RankLaid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runfold.events.state import Place


def lay_out(places: Sequence[Place], num_workers: int, homes: Sequence[str] = ()) -> tuple[RankLaid, ...]:
    """Return the layout of so many ranks on these places; `homes` is each rank's node in the layout before.

    There must be a slot for each rank.
    """
    free = [place.slots for place in places]
    chosen: list[int | None] = [None] * num_workers
    for rank, home in enumerate(homes[:num_workers]):
        chosen[rank] = _take(free, [i for i, place in enumerate(places) if place.node == home])
    for rank, place in enumerate(chosen):
        if place is None:
            chosen[rank] = _take(free, range(len(places)))
    return _numbered([place for place in chosen if place is not None], places)


def _take(free: list[int], candidates: Sequence[int]) -> int | None:
    for i in candidates:
        if free[i] > 0:
            free[i] -= 1
            return i
    return None


def _numbered(chosen: Sequence[int], places: Sequence[Place]) -> tuple[RankLaid, ...]:
    node_ranks: dict[str, int] = {}
    locals_on: Counter[str] = Counter()
    laid: list[RankLaid] = []
    for rank, i in enumerate(chosen):
        node = places[i].node
        node_rank = node_ranks.setdefault(node, len(node_ranks))
        laid.append(RankLaid(rank=rank, life=1, place=i, local_rank=locals_on[node], node_rank=node_rank))
        locals_on[node] += 1
    return tuple(laid)


def layout_words(layout: Sequence[RankLaid], places: Sequence[Place]) -> str:
    """Return a layout in words: `2 ranks on node-a, 1 on node-b`."""
    on_node = Counter(places[laid.place].node for laid in layout)
    parts = [f"{count} on {node}" for node, count in on_node.items()]
    head, rest = parts[0], parts[1:]
    count, _, where = head.partition(" ")
    return ", ".join([f"{count} rank{'s' if count != '1' else ''} {where}", *rest])
