"""A cluster of hosts of TPU slices, for tests: it gives what its nodes have, by their labels."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runfold.workers.pools.labels import fits
from runfold.workers.pools.ray.library import Group, RayNode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

HEAD = "TPU-v4-16-head"
Selectors = list[dict[str, str]]


def host(name: str, number: int, *, chips: float = 4.0, **labels: str) -> RayNode:
    """A host of the slice `name`, with this number there."""
    told = {"ray.io/tpu-slice-name": name, "ray.io/tpu-worker-id": str(number), "ray.io/tpu-pod-type": "v4-16"}
    head = {HEAD: 1.0} if number == 0 else {}
    called = f"{name}{number}"
    resources = {"CPU": 1.0, "TPU": chips, **head}
    return RayNode(
        id=f"id-{called}",
        name=called,
        addr="10.0.0.1",
        alive=True,
        resources=resources,
        labels={**told, **{f"ray.io/tpu-{label.replace('_', '-')}": value for label, value in labels.items()}},
    )


class Hosts:
    """A cluster that gives what its nodes have; what it cannot give waits until `look` finds that it can."""

    def __init__(self, *nodes: RayNode) -> None:
        self.all = {node.id: node for node in nodes}
        self.going: dict[str, float | None] = {}
        self.left = {node.id: dict(node.resources) for node in nodes}
        self.asked: list[tuple[str, Selectors]] = []
        self.held: dict[str, list[tuple[str, Mapping[str, float]]]] = {}
        self.pending: dict[str, tuple[Sequence[Mapping[str, float]], Selectors, asyncio.Future[None]]] = {}
        self.refuses: Exception | None = None

    async def nodes(self) -> list[RayNode]:
        return list(self.all.values())

    async def draining(self) -> dict[str, float | None]:
        return self.going

    async def free(self) -> dict[str, dict[str, float]]:
        return {node: dict(amounts) for node, amounts in self.left.items()}

    async def own_node(self) -> str:
        return "id-head"

    async def actors(self) -> list[str]:
        return []

    async def groups(self, suffix: str) -> list[Group]:
        return [Group(id=name, name=name) for name in (*self.held, *self.pending) if name.endswith(suffix)]

    async def create_group(
        self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str, selectors: Selectors
    ) -> tuple[Group, Awaitable[object]]:
        assert strategy == "PACK"
        if self.refuses is not None:
            raise self.refuses
        self.asked.append((name, selectors))
        self.pending[name] = (bundles, selectors or [{} for _ in bundles], asyncio.get_running_loop().create_future())
        ready = self.pending[name][2]
        self.look()
        return Group(id=name, name=name), ready

    async def bundles(self, group: Group) -> list[str | None]:
        return [node for node, _ in self.held[group.id]] if group.id in self.held else [None]

    async def remove_group(self, group: Group) -> None:
        self.pending.pop(group.id, None)
        for node, bundle in self.held.pop(group.id, []):
            self._take(node, bundle, 1)
        self.look()

    def look(self) -> None:
        """Give what can be given now."""
        for name, (bundles, selectors, ready) in list(self.pending.items()):
            given: list[tuple[str, Mapping[str, float]]] = []
            for bundle, selector in zip(bundles, selectors, strict=True):
                node = self._with(bundle, selector)
                if node is None:
                    break
                self._take(node, bundle, -1)
                given.append((node, bundle))
            if len(given) < len(bundles):
                for node, bundle in given:
                    self._take(node, bundle, 1)
                continue
            self.held[name] = given
            del self.pending[name]
            if not ready.done():
                ready.set_result(None)

    def _with(self, bundle: Mapping[str, float], selector: Mapping[str, str]) -> str | None:
        for node in self.all.values():
            has = self.left[node.id]
            if fits(selector, node.labels) and all(has.get(name, 0.0) >= amount for name, amount in bundle.items()):
                return node.id
        return None

    def _take(self, node: str, bundle: Mapping[str, float], sign: int) -> None:
        if node in self.left:
            for name, amount in bundle.items():
                self.left[node][name] += sign * amount

    def lose(self, *names: str) -> None:
        """Nodes die; what was reserved there is reserved nowhere."""
        for name in names:
            del self.all[f"id-{name}"], self.left[f"id-{name}"]

    def join(self, *nodes: RayNode) -> None:
        """Nodes come."""
        for node in nodes:
            self.all[node.id], self.left[node.id] = node, dict(node.resources)
        self.look()

    def use(self, name: str, **amounts: float) -> None:
        """Somebody else takes so much of a node, or gives it back."""
        self._take(f"id-{name}", amounts, -1)
        self.look()
