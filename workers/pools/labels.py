"""Labels of nodes, and which of them a group's ranks may stand on. No I/O, no clock.

A selector says of labels what they must be: `"v"`, `"!v"` (not that), `"in(a, b)"`, `"!in(a, b)"`; all of it must hold.
A node without a label fulfils what is said of its absence. Every node has `NODE_LABEL`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from runfold.events.config import PlacementStrategy

NODE_LABEL: Final = "runfold.node"
"""The name of the node."""
HOST_LABEL: Final = "runfold.hostname"
"""What the machine calls itself."""

Labels = Mapping[str, Mapping[str, str]]
"""The labels of each node."""
Room = dict[str, int]
"""How many ranks there is room for on each node, or how many it takes."""
Selector = Mapping[str, str]
Share = Callable[[Mapping[str, int], int, PlacementStrategy], Room]


def fits(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is one that the selector allows."""
    return all(_holds(wanted, labels.get(name)) for name, wanted in selector.items())


def _holds(wanted: str, found: str | None) -> bool:
    wanted = wanted.strip()
    if wanted.startswith("!"):
        return not _holds(wanted[1:], found)
    if wanted.startswith("in(") and wanted.endswith(")"):
        return found in [one.strip() for one in wanted[3:-1].split(",")]
    return found == wanted


def words(labels: Mapping[str, str]) -> str:
    """Return labels, or a selector, in words."""
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def nowhere(selectors: Sequence[Selector], labels: Labels) -> str | None:
    """Return why ranks with these selectors can stand nowhere: the first one that no node fulfils; None for none."""
    for selector in selectors:
        if not any(fits(selector, of) for of in labels.values()):
            has = "; ".join(f"{node} has {words(of)}" for node, of in labels.items()) or "there is no usable node"
            return f"no node of this pool fulfils the label selector {words(selector)}: {has}"
    return None


def shared_out(
    room: Room, wanted: int, strategy: PlacementStrategy, selectors: Sequence[Selector], labels: Labels, share: Share
) -> Room:
    """Return how many ranks each node takes of those wanted, each rank where its selector allows; perhaps too few.

    `selectors` is one for all ranks, or one for each; `share` shares out ranks that may stand anywhere.
    """
    kinds = Counter(tuple(sorted(selector.items())) for selector in selectors[:wanted])
    allowed = {kind: [node for node in room if fits(dict(kind), labels.get(node, {}))] for kind in kinds}
    everywhere = {node: room[node] for node in room if all(node in nodes for nodes in allowed.values())}
    together = share(everywhere, wanted, strategy)
    if len(kinds) <= 1 or strategy == "STRICT_PACK" or (strategy == "PACK" and sum(together.values()) >= wanted):
        return together
    most = {node: min(ranks, 1) if strategy == "STRICT_SPREAD" else ranks for node, ranks in room.items()}
    return _matched(most, [(allowed[kind], count) for kind, count in kinds.items()], even=strategy != "PACK")


def _matched(room: Room, kinds: Sequence[tuple[list[str], int]], *, even: bool) -> Room:
    """Share out ranks of several kinds, each with nodes of its own, by augmenting paths; nothing if they do not fit.

    `even`: the emptiest node is taken first, else the roomiest.
    """
    taken: list[Room] = [dict.fromkeys(nodes, 0) for nodes, _ in kinds]
    used = dict.fromkeys(room, 0)

    def place(kind: int, seen: set[str]) -> bool:
        nodes = [node for node in taken[kind] if node not in seen]
        nodes.sort(key=lambda node: used[node] if even else -room[node])
        for node in nodes:
            if used[node] < room[node]:
                taken[kind][node] += 1
                used[node] += 1
                return True
        for node in nodes:
            seen.add(node)
            for other, has in enumerate(taken):
                if other != kind and has.get(node, 0) and place(other, seen):
                    has[node] -= 1
                    taken[kind][node] += 1
                    return True
        return False

    for kind, (_, count) in sorted(enumerate(kinds), key=lambda one: len(one[1][0])):
        if not all(place(kind, set()) for _ in range(count)):
            return {}
    return used
