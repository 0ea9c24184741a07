"""What a cluster has, and what of it the runs of a pool hold."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runfold.workers.pools.ray.library import Group, RayNode


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a slice: the placement group that has it, on which node (its id)."""

    group: Group
    node: str


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as it was seen: its nodes, what each has free, and which of them will go, all by name."""

    nodes: dict[str, RayNode] = {}
    free: dict[str, dict[str, float]] = {}
    leaving: frozenset[str] = frozenset()


class Reserved(msgspec.Struct, eq=False):
    """What a run holds: the placement group, the node (its id) of each of its bundles, what each bundle has.

    `lent`: bundles of the run's own placement group, with which they are given back. `heads`: of its TPU slices.
    """

    group: Group
    bundles: list[str]
    resources: Mapping[str, float]
    lent: bool = False
    heads: list[Head] = []

    def on(self, node: str) -> list[int]:
        """Return the bundles on a node (its id)."""
        return [index for index, where in enumerate(self.bundles) if where == node]
