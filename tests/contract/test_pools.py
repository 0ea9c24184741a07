"""What every pool does: the one of this machine, and that of a Ray cluster (where Ray is installed)."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from runfold.events.facts import PlaceOffer
from runfold.workers.hatchery import Hatchery, RunnerProcess, launch_zygote
from runfold.workers.pipe import RunnerSpec
from runfold.workers.pools.labels import NODE_LABEL
from runfold.workers.pools.local import Demand, Granted
from runfold.workers.pools.machine import MachinePool
from runfold.workers.pools.ray import RayConfig
from runfold.workers.pools.ray.pool import open_ray_pool
from support.processes import alive, name_of
from support.rayed import NEEDS_RAY, OURS, RayCluster
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from runfold.workers.pools.pool import Left, Pool, Watched

NOWHERE = "nats://127.0.0.1:9"
"""No broker: a runner tries on until it is told to stop."""
PATIENCE_S = 60.0
RUNNER = "runfold-runner"


@dataclass
class Rig:
    """A pool of two nodes with two CPUs each, opened as a supervisor does; `reopen` is what the next one does."""

    open: Callable[[], AbstractAsyncContextManager[Pool]]
    below: Callable[[], list[psutil.Process]]
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        self.woken = asyncio.Event()
        self.pool = await self.opened.enter_async_context(self.open())
        self.pool.attend(self.woken.set)
        serving = asyncio.create_task(self.pool.serve())

        async def stop() -> None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

        self.opened.push_async_callback(stop)

    async def reopen(self) -> None:
        await self.opened.aclose()
        await self.start()

    async def granted(self, *runs: str) -> list[Granted]:
        """Wait until these runs have their places; return what was granted, in order."""
        found: list[Granted] = []

        def all_there() -> bool:
            found.extend(self.pool.book.grant())
            return {one.demand.run for one in found} >= set(runs)

        await until(all_there, PATIENCE_S)
        return found

    async def runner(self, run: str) -> tuple[Watched, RunnerSpec]:
        """Have a group of one rank placed, and its runner started and at work."""
        wanted = demand(run, 1)
        self.pool.book.ask(wanted)
        (granted,) = await self.granted(run)
        spec = RunnerSpec(
            url=NOWHERE,
            namespace="runfold",
            run=run,
            attempt=1,
            pool="tested",
            node=granted.places[0].node,
            source=granted.places[0].node,
            secret=b"s" * 32,
            base_dir="/",
            slots=1,
            resources=wanted.resources,
            adopt=True,
            adopt_within_s=60.0,
            places_dir=getattr(self.pool, "_folder", None) and str(self.pool._folder),  # type: ignore[attr-defined]  # of the machine's own
        )
        started = self.pool.start(spec, self.woken.set)
        await until(lambda: any(name_of(one) == RUNNER for one in self.below()), PATIENCE_S)
        # One that is let go before its zygote has told of it is ended: nobody else might know of it.
        await until(lambda: not isinstance(started, RunnerProcess) or started.pid is not None, PATIENCE_S)
        if spec.places_dir is not None:
            # One whose supervisor goes before there is a door to knock at ends with it. The folder is only looked into:
            # who looks for places holds each for an instant, in which the runner may find its own taken.
            folder = Path(spec.places_dir)
            await until(lambda: any(folder.glob("*.sock")), PATIENCE_S)
        return started, spec

    def runner_process(self) -> psutil.Process:
        """The process of the runner: what it forks has its name too, until it takes one of its own."""
        named = [one for one in self.below() if name_of(one) == RUNNER]
        pids = {one.pid for one in named}
        (first,) = [one for one in named if one.ppid() not in pids]
        return first

    async def left(self) -> Left:
        """Wait for the runner that an earlier supervisor has left to be found."""
        found: list[Left] = []

        def one_there() -> bool:
            found.extend(self.pool.find(lambda _: bool(found), self.woken.set))
            return bool(found)

        await until(one_there, PATIENCE_S)
        return found[0]


def demand(run: str, num_workers: int, **changes: object) -> Demand:
    values: dict[str, object] = {"resources": {"CPU": 1.0}, "accepted_at": run, **changes}
    return Demand(run=run, attempt=1, num_workers=num_workers, **values)  # type: ignore[arg-type]  # by name


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if alive(one)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster() as made:
        for kind in ("left", "right"):
            made.add(labels={"kind": kind})
        yield made


@pytest.fixture(params=["machine", pytest.param("ray", marks=NEEDS_RAY)])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    made = _machine(tmp_path) if request.param == "machine" else _ray(request.getfixturevalue("cluster"))
    await made.start()
    try:
        yield made
        await until(lambda: not living(made.below()) or request.param == "machine", PATIENCE_S)
    finally:
        await made.opened.aclose()
    await until(lambda: not living(made.below()), PATIENCE_S)


def _machine(folder: Path) -> Rig:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Pool]:
        hatchery = Hatchery(launch_zygote())
        try:
            labels = {"a": {"kind": "left"}, "b": {"kind": "right"}}
            yield MachinePool({"a": 2, "b": 2}, hatchery, "tested", str(folder), labels)
        finally:
            await hatchery.close()

    def below() -> list[psutil.Process]:
        return [one for one in psutil.Process().children(recursive=True) if name_of(one).startswith(OURS)]

    return Rig(opened, below)


def _ray(cluster: RayCluster) -> Rig:
    # Another broker is another pool: what one test left would not be found by the next.
    url = f"{NOWHERE}/{secrets.token_hex(4)}"
    where = RayConfig(address=cluster.address)
    return Rig(lambda: open_ray_pool(where, url=url, namespace="runfold", pool="tested"), cluster.family)


async def test_whole_groups_in_order_and_nobody_overtakes(rig: Rig) -> None:
    book = rig.pool.book
    book.ask(demand("a", 3))
    (first,) = await rig.granted("a")
    assert sum(place.slots for place in first.places) == 3
    assert {place.node for place in first.places} == set(book.nodes) - {n for n, cpus in book.nodes.items() if not cpus}
    book.ask(demand("c", 1))
    book.ask(demand("b", 2))
    book.ask(demand("d", 1, priority=1, resources={"CPU": 2.0}))
    assert {run: one.ahead for run, one in book.waiting().items()} == {"d": 0, "b": 1, "c": 2}
    assert {run: one.needed for run, one in book.waiting().items()} == {"d": 2, "b": 2, "c": 1}
    book.withdraw("d")
    book.release("a")
    assert [one.demand.run for one in await rig.granted("b", "c")] == ["b", "c"]
    assert book.waiting() == {}
    for run in "bc":
        book.release(run)


@pytest.mark.parametrize(
    ("strategy", "workers", "nodes"),
    [("PACK", 2, 1), ("SPREAD", 2, 2), ("STRICT_PACK", 2, 1), ("STRICT_SPREAD", 2, 2), ("PACK", 4, 2)],
)
async def test_how_groups_lie(rig: Rig, strategy: str, workers: int, nodes: int) -> None:
    rig.pool.book.ask(demand("a", workers, strategy=strategy))
    (granted,) = await rig.granted("a")
    assert len(granted.places) == nodes
    assert sum(place.slots for place in granted.places) == workers
    rig.pool.book.release("a")


async def test_where_groups_lie(rig: Rig) -> None:
    """By labels, one selector for all ranks or one for each; by the name of a node; off nodes; parts of a CPU."""
    book = rig.pool.book
    found: dict[str, set[str]] = {}
    for kind in ("left", "right"):
        book.ask(demand(kind, 2, resources={"CPU": 0.5}, selectors=({"kind": kind},)))
        (granted,) = await rig.granted(kind)
        found[kind] = {place.node for place in granted.places}
    assert all(len(nodes) == 1 for nodes in found.values())
    (left,), (right,) = found["left"], found["right"]
    assert left != right
    book.ask(demand("both", 2, resources={"CPU": 0.5}, selectors=({"kind": "left"}, {"kind": "in(right)"})))
    (granted,) = await rig.granted("both")
    assert {place.node: place.slots for place in granted.places} == {left: 1, right: 1}
    book.ask(demand("off", 1, resources={"CPU": 0.5}, excluded=(left,)))
    (granted,) = await rig.granted("off")
    assert [place.node for place in granted.places] == [right]
    book.ask(demand("named", 1, resources={"CPU": 0.5}, selectors=({NODE_LABEL: left},)))
    (granted,) = await rig.granted("named")
    assert [place.node for place in granted.places] == [left]
    for run in ("left", "right", "both", "off", "named"):
        book.release(run)


async def test_what_can_never_be_is_told_with_its_reason(rig: Rig) -> None:
    never = rig.pool.book.never
    assert never(demand("a", 4)) is None
    assert "5 ranks with 1 CPU each" in str(never(demand("a", 5)))
    assert "no GPU" in str(never(demand("a", 1, resources={"GPU": 1.0})))
    assert never(demand("a", 3, strategy="STRICT_PACK")) is not None
    assert never(demand("a", 3, strategy="STRICT_SPREAD")) is not None
    assert never(demand("a", 1, selectors=({"kind": "!left"},))) is None
    assert "kind=middle" in str(never(demand("a", 1, selectors=({"kind": "middle"},))))


async def test_what_there_is_room_for(rig: Rig) -> None:
    book = rig.pool.book
    book.ask(demand("other", 1))
    await rig.granted("other")
    await until(lambda: book.room(demand("a", 4)).fits == 3, PATIENCE_S)
    assert sum((book.room(demand("a", 4)).whole or {}).values()) == 4
    book.ask(demand("a", 2))
    await rig.granted("a")
    await until(lambda: book.room(demand("a", 4)).fits == 3, PATIENCE_S)
    assert book.overdrawn() == []
    for run in ("other", "a"):
        book.release(run)


async def test_a_runner_is_told_to_stop(rig: Rig) -> None:
    started, _ = await rig.runner("a")
    assert started.alive
    rig.woken.clear()
    started.stop("the test says so", PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await rig.woken.wait()
        await started.wait()
    assert (started.alive, started.here.code, started.here.ended_s is None) == (False, 0, False)
    rig.pool.book.release("a")


async def test_a_runner_is_killed_and_that_is_seen(rig: Rig) -> None:
    started, _ = await rig.runner("a")
    rig.runner_process().kill()
    async with asyncio.timeout(PATIENCE_S):
        await started.wait()
    assert (started.here.code, started.here.signal) == (None, 9)
    rig.pool.book.release("a")


async def test_a_runner_outlives_its_supervisor_and_is_found_by_the_next(rig: Rig) -> None:
    started, spec = await rig.runner("a")
    process = rig.runner_process()
    await started.let_go()
    await rig.reopen()
    assert living([process]) == [process]
    found = await rig.left()
    assert (found.node, found.place.run, found.place.slots, found.alive) == (spec.node, "a", 1, True)
    await until(lambda: found.secret == spec.secret, PATIENCE_S)
    rig.pool.book.hold(demand("a", 1), place_of(found))
    assert rig.pool.find(lambda _: True, rig.woken.set) == []
    found.stop("the test says so", 1.0)
    async with asyncio.timeout(PATIENCE_S):
        await found.wait()
    assert not found.alive
    rig.pool.book.release("a")
    rig.pool.book.ask(demand("b", 4))
    await rig.granted("b")
    rig.pool.book.release("b")


def place_of(found: Left) -> PlaceOffer:
    return PlaceOffer(node=found.place.node, slots=found.place.slots)


async def test_a_place_that_lost_its_runner_alone_is_had_again_and_goes_with_the_group(rig: Rig) -> None:
    book = rig.pool.book
    book.ask(demand("a", 4))
    (granted,) = await rig.granted("a")
    stays, lost = granted.places
    book.part("a", lost.node)
    mend = {"num_workers": 2, "strategy": "STRICT_PACK", "excluded": (stays.node,), "of": "a", "whole": granted.demand}
    book.ask(demand("a/place-1", **mend))  # type: ignore[arg-type]  # by name
    (again,) = await rig.granted("a/place-1")
    assert again.places == (PlaceOffer(node=lost.node, slots=2),)
    for key in ("a/place-1", "a"):
        book.release(key)
    book.ask(demand("b", 4))
    await rig.granted("b")
    book.release("b")


async def test_who_waits_for_a_place_is_told_when_others_could_use_those_that_it_keeps(rig: Rig) -> None:
    book = rig.pool.book
    book.ask(demand("a", 2, strategy="STRICT_SPREAD", resources={"CPU": 2.0}))
    (granted,) = await rig.granted("a")
    stays, lost = (place.node for place in granted.places)
    off = demand("a", 2, strategy="STRICT_SPREAD", resources={"CPU": 2.0}, excluded=(lost,))
    book.ask(demand("a/place-1", 1, resources={"CPU": 2.0}, excluded=(stays, lost), of="a", whole=off))

    def contested() -> bool:
        return book.waiting()["a/place-1"].contested

    assert not contested(), "nobody else waits, and without the node that was lost there is no room for all"
    book.ask(demand("b", 1))
    assert contested()
    book.withdraw("b")
    book.ask(demand("b", 1, selectors=({NODE_LABEL: "elsewhere"},)))
    assert not contested(), "who waits for other nodes could not use them"
    assert not book.waiting()["a/place-1"].hopeless
    whole = demand("a", 2, resources={"CPU": 1.0}, excluded=(lost,))
    book.ask(demand("a/place-1", 1, resources={"CPU": 2.0}, excluded=(stays, lost), of="a", whole=whole))
    assert contested(), "the group could be placed whole"
    assert book.waiting()["a/place-1"].hopeless, "and no node that is there could have its place"
    for key in ("b", "a/place-1"):
        book.withdraw(key)
    book.release("a")
