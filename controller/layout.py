"""Who is which rank: node after node, by GPU on a node, by pod on a TPU; a rank keeps its node.

With replica groups the local ranks and the numbers of nodes are those within a group.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from runfold.events.base import Value
from runfold.events.transitions import RankLaid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runfold.events.state import Place

_LAYOUTS_REMEMBERED_COUNT: Final = 16


class _Slot(Value, frozen=True):
    place: int
    number: int
    node: str


class _Shape(Value, frozen=True):
    """What counts of a place: its node and slots, their GPUs, and where a TPU pod has it."""

    node: str
    slots: int
    gpus: tuple[tuple[str, ...], ...]
    pod: tuple[str, int]


def lay_out(
    places: Sequence[Place], num_workers: int, homes: Sequence[str] = (), replica_size: int | None = None
) -> tuple[RankLaid, ...]:
    """Return the layout of so many ranks on these places; `homes` is each rank's node in the layout before.

    There must be a slot for each rank.
    """
    return _laid_out(tuple([_shape(place) for place in places]), num_workers, tuple(homes), replica_size)


def _shape(place: Place) -> _Shape:
    ready = place.ready
    if ready is None:
        return _Shape(place.node, place.slots, (), ("", 0))
    return _Shape(place.node, place.slots, ready.gpus, (ready.pod, ready.pod_host))


# Most groups begin again on the places they had: a log that does nothing else is verified a tenth faster.
@lru_cache(maxsize=_LAYOUTS_REMEMBERED_COUNT)
def _laid_out(
    places: tuple[_Shape, ...], num_workers: int, homes: tuple[str, ...], replica_size: int | None
) -> tuple[RankLaid, ...]:
    slots = _in_order(places)
    free = list(slots)
    chosen: list[_Slot | None] = [None] * num_workers
    for rank, home in enumerate(homes[:num_workers]):
        chosen[rank] = _take(free, home)
    for rank, slot in enumerate(chosen):
        if slot is None:
            chosen[rank] = _take(free, None)
    order = {slot: i for i, slot in enumerate(slots)}
    return _numbered(_by_device([slot for slot in chosen if slot is not None], order), replica_size)


def _in_order(places: Sequence[_Shape]) -> list[_Slot]:
    """Return all slots as ranks fill them up: by node as first seen, then by GPU; on TPUs by pod, then by its host."""
    slots = [_Slot(i, k, place.node) for i, place in enumerate(places) for k in range(place.slots)]
    if any(place.pod[0] for place in places):
        return sorted(slots, key=lambda slot: places[slot.place].pod)
    seen: dict[str, int] = {}
    for slot in slots:
        seen.setdefault(slot.node, len(seen))
    return sorted(slots, key=lambda slot: (seen[slot.node], _gpu(places[slot.place].gpus, slot.number)))


def _gpu(gpus: tuple[tuple[str, ...], ...], slot: int) -> tuple[bool, int, str]:
    """Return what slots of a node are sorted by: the lowest GPU id, as a number if all are numbers; none is 0."""
    ids = gpus[slot] if slot < len(gpus) else ()
    if all(one.isdecimal() for one in ids):
        return (False, min((int(one) for one in ids), default=0), "")
    return (True, 0, min(ids))


def _take(free: list[_Slot], home: str | None) -> _Slot | None:
    """Take the next free slot, on a node if one is named."""
    found = next((slot for slot in free if home in (None, slot.node)), None)
    if found is not None:
        free.remove(found)
    return found


def _by_device(chosen: Sequence[_Slot], order: dict[_Slot, int]) -> list[_Slot]:
    """Let the ranks of a node have its slots in their order: the lowest rank the first."""
    on_node: dict[str, list[_Slot]] = {}
    for slot in sorted(chosen, key=lambda slot: order[slot]):
        on_node.setdefault(slot.node, []).append(slot)
    return [on_node[slot.node].pop(0) for slot in chosen]


def _numbered(chosen: Sequence[_Slot], replica_size: int | None) -> tuple[RankLaid, ...]:
    size = replica_size or max(len(chosen), 1)
    node_ranks: dict[int, dict[str, int]] = {}
    locals_on: Counter[tuple[int, str]] = Counter()
    laid: list[RankLaid] = []
    for rank, slot in enumerate(chosen):
        replica = rank // size
        nodes = node_ranks.setdefault(replica, {})
        node_rank, local = nodes.setdefault(slot.node, len(nodes)), locals_on[replica, slot.node]
        locals_on[replica, slot.node] += 1
        number = slot.number if slot.number != local else None
        laid.append(RankLaid(rank=rank, life=1, place=slot.place, local_rank=local, node_rank=node_rank, slot=number))
    return tuple(laid)


def layout_words(layout: Sequence[RankLaid], places: Sequence[Place]) -> str:
    """Return a layout in words: `2 ranks on node-a, 1 on node-b`."""
    on_node: dict[str, int] = {}
    for laid in layout:
        node = places[laid.place].node
        on_node[node] = on_node.get(node, 0) + 1
    parts = [f"{count} on {node}" for node, count in on_node.items()]
    head, rest = parts[0], parts[1:]
    count, _, where = head.partition(" ")
    return ", ".join([f"{count} rank{'s' if count != '1' else ''} {where}", *rest])
