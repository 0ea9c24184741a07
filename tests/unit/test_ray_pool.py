"""What the Ray pool makes of what a cluster says, without a cluster: notices, room, selectors, who is asked for."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import pytest

from runfold.workers.pools.labels import NODE_LABEL
from runfold.workers.pools.local import Demand
from runfold.workers.pools.ray.library import Group, Ray, RayNode
from runfold.workers.pools.ray.pool import RayPool
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence


class Said:
    """A cluster that says what the test tells it to."""

    def __init__(self, *nodes: RayNode) -> None:
        self.all = list(nodes)
        self.going: dict[str, float | None] = {}
        self.unused: dict[str, dict[str, float]] = {node.id: node.resources for node in nodes}
        self.asked: list[tuple[str, Sequence[Mapping[str, str]]]] = []
        self.removed: list[str] = []
        self.ready: dict[str, asyncio.Future[None]] = {}
        self.where: list[str | None] = []

    async def nodes(self) -> list[RayNode]:
        return self.all

    async def draining(self) -> dict[str, float | None]:
        return self.going

    async def free(self) -> dict[str, dict[str, float]]:
        return self.unused

    async def own_node(self) -> str:
        return "id-a"

    async def actors(self) -> list[str]:
        return []

    async def groups(self, suffix: str) -> list[Group]:
        return [Group(id="old", name=f"runfold-old{suffix}")]

    async def remove_group(self, group: Group) -> None:
        self.removed.append(group.id)

    async def create_group(
        self, name: str, bundles: Sequence[object], strategy: str, selectors: Sequence[Mapping[str, str]]
    ) -> tuple[Group, Awaitable[object]]:
        run = name.removeprefix("runfold-").partition("-")[0]
        self.asked.append((run, selectors))
        self.ready[run] = asyncio.get_running_loop().create_future()
        return Group(id=run, name=name), self.ready[run]

    async def bundles(self, group: Group) -> list[str | None]:
        return self.where


def node(name: str, cpus: float = 2.0) -> RayNode:
    return RayNode(id=f"id-{name}", name=name, addr="10.0.0.1", alive=True, resources={"CPU": cpus})


def demand(run: str, num_workers: int, **changes: object) -> Demand:
    values: dict[str, object] = {"resources": {"CPU": 1.0}, "accepted_at": run, **changes}
    return Demand(run=run, attempt=1, num_workers=num_workers, **values)  # type: ignore[arg-type]  # by name


@pytest.fixture
def said() -> Said:
    return Said(node("a"), node("b"))


@pytest.fixture
async def pool(said: Said) -> AsyncIterator[RayPool]:
    made = RayPool(cast("Ray", said), "runfold-", "-ours")
    await made.look_around()
    serving = asyncio.create_task(made.serve())
    yield made
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await made.book.close()


async def test_a_drain_is_a_notice_and_its_end_is_another(said: Said, pool: RayPool) -> None:
    said.going = {"id-b": time.time() + 3600}
    found = []

    def heard(count: int) -> bool:
        found.extend(pool.notices())
        return len(found) >= count

    await until(lambda: heard(1))
    assert (found[0].nodes, found[0].cancelled, 3000 < (found[0].within_s or 0) <= 3600) == (("b",), False, True)
    assert pool.book.room(demand("x", 4)).fits == 2
    said.going = {}
    await until(lambda: heard(2))
    assert (found[1].nodes, found[1].cancelled) == (("b",), True)
    said.going = {"id-b": None}
    await until(lambda: heard(3))
    assert found[2].within_s is None
    said.all, said.going = [node("a")], {}
    await until(lambda: list(pool.book.nodes) == ["a"])
    assert len(found) == 3


async def test_what_an_earlier_supervisor_asked_for_and_never_used_is_given_back(said: Said, pool: RayPool) -> None:
    await until(lambda: said.removed == ["old"])


async def test_who_waits_for_nodes_has_them_asked_for_and_keeps_nobody_back(said: Said, pool: RayPool) -> None:
    pool.book.ask(demand("big", 2, resources={"CPU": 2.0}, excluded=("b",), accepted_at="1"))
    pool.book.ask(demand("small", 1, accepted_at="2"))
    pool.book.ask(demand("last", 1, accepted_at="3"))
    await until(lambda: len(said.asked) == 2)
    assert [run for run, _ in said.asked] == ["big", "small"]
    said.where = ["id-b"]
    said.ready["small"].set_result(None)
    await until(lambda: [one.demand.run for one in pool.book.grant()] == ["small"])
    await until(lambda: [run for run, _ in said.asked] == ["big", "small", "last"])
    pool.book.withdraw("last")
    await until(lambda: "last" in said.removed)
    pool.book.release("small")
    await until(lambda: "small" in said.removed)


async def test_selectors_are_told_in_the_words_of_ray(said: Said, pool: RayPool) -> None:
    pool.book.ask(demand("a", 2, selectors=({"zone": "x"}, {"zone": "!y"}), excluded=("b",)))
    await until(lambda: len(said.asked) == 1)
    assert said.asked[0][1] == [
        {"zone": "x", "ray.io/node-id": "!in(id-b)"},
        {"zone": "!y", "ray.io/node-id": "!in(id-b)"},
    ]
    pool.book.withdraw("a")
    pool.book.ask(demand("b", 1, selectors=({NODE_LABEL: "in(a, b)"},), excluded=("b",)))
    await until(lambda: len(said.asked) == 2)
    assert said.asked[1][1] == [{"ray.io/node-id": "in(id-a)"}]


async def test_room_counts_what_the_run_holds_and_what_others_use(said: Said, pool: RayPool) -> None:
    said.unused = {"id-a": {"CPU": 0.0}, "id-b": {"CPU": 2.0}}
    await until(lambda: pool.book.free == 2)
    assert (pool.book.room(demand("x", 4)).room, pool.book.room(demand("x", 4)).fits) == ({"a": 0, "b": 2}, 2)
    pool.book.ask(demand("x", 2))
    await until(lambda: len(said.asked) == 1)
    said.where = ["id-b", "id-b"]
    said.ready["x"].set_result(None)
    await until(lambda: bool(pool.book.grant()))
    said.unused = {"id-a": {"CPU": 0.0}, "id-b": {"CPU": 0.0}}
    await until(lambda: pool.book.free == 0)
    assert pool.book.room(demand("x", 4)).fits == 2
    assert pool.book.room(demand("y", 4)).fits == 0


async def test_another_place_of_a_run_is_its_own_too(said: Said, pool: RayPool) -> None:
    said.unused = {"id-a": {"CPU": 2.0}, "id-b": {"CPU": 2.0}}
    await until(lambda: pool.book.free == 4)
    pool.book.ask(demand("x", 2, excluded=("b",)))
    await until(lambda: len(said.asked) == 1)
    said.where = ["id-a", "id-a"]
    said.ready["x"].set_result(None)
    await until(lambda: bool(pool.book.grant()))
    pool.book.ask(demand("x/place-0", 2, excluded=("a",), mends=True, of="x"))
    await until(lambda: len(said.asked) == 2)
    assert pool.book.room(demand("x", 4)).fits == 4, "its own wish keeps it from nothing"
    said.where = ["id-b", "id-b"]
    said.ready[list(said.ready)[-1]].set_result(None)
    await until(lambda: bool(pool.book.grant()))
    said.unused = {"id-a": {"CPU": 0.0}, "id-b": {"CPU": 0.0}}
    await until(lambda: pool.book.free == 0)
    assert pool.book.room(demand("x", 4)).room == {"a": 2, "b": 2}


def test_only_the_nodes_of_this_machine_go_with_it(said: Said) -> None:
    async def both() -> tuple[bool, bool]:
        made = RayPool(cast("Ray", said), "runfold-", "-ours")
        await made.look_around()
        await made.book.close()
        return made.is_here("a"), made.is_here("b")

    assert asyncio.run(both()) == (True, False)


async def has(said: Said, pool: RayPool, run: str, workers: int, *where: str) -> None:
    """A run holds places on these nodes."""
    pool.book.ask(demand(run, workers))
    await until(lambda: run in said.ready)
    said.where = [*where]
    said.ready[run].set_result(None)
    await until(lambda: [one.demand.run for one in pool.book.grant()] == [run])


async def test_a_place_that_lost_its_runner_alone_has_the_bundles_that_are_there(said: Said, pool: RayPool) -> None:
    await has(said, pool, "x", 4, "id-a", "id-a", "id-b", "id-b")
    said.unused = {"id-a": {"CPU": 0.0}, "id-b": {"CPU": 0.0}}
    await until(lambda: pool.book.free == 0)
    pool.book.ask(demand("x/place-1", 2, strategy="STRICT_PACK", excluded=("a",), of="x"))
    granted: list[str] = []

    def found() -> bool:
        granted.extend(place.node for one in pool.book.grant() for place in one.places)
        return bool(granted)

    await until(found)
    assert (granted, [run for run, _ in said.asked]) == (["b"], ["x"])
    assert pool.book.reserved["x/place-1"].on("id-b") == [2, 3]
    assert pool.book.room(demand("x", 4)).fits == 4, "what was lent counts once"
    pool.book.release("x")
    await until(lambda: "x" in said.removed)
    assert not pool.book.reserved


async def test_a_place_on_a_node_out_of_reach_is_not_had_again(said: Said, pool: RayPool) -> None:
    """Ray still has the node; it is waited for Ray's word that it is gone, and where its bundles are put."""
    await has(said, pool, "x", 2, "id-a", "id-b")
    pool.book.suspect("b")
    pool.book.ask(demand("x/place-1", 1, strategy="STRICT_PACK", excluded=("a",), of="x"))
    said.all, said.where = [node("a"), node("c")], ["id-a", "id-c"]
    granted: list[str] = []

    def found() -> bool:
        granted.extend(place.node for one in pool.book.grant() for place in one.places)
        return bool(granted)

    await until(found)
    assert (granted, [run for run, _ in said.asked]) == (["c"], ["x"])
