"""What the Ray pool makes of TPU slices, without a cluster: which are whole, reserved all or not at all, given back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from runfold.events.assignment import Assignment
from runfold.events.facts import PlacementFailed, Queued
from runfold.events.slices import slice_of
from runfold.workers.desk import Desk, Site
from runfold.workers.pools.local import Demand, GivenUp, Slots, Waiting
from runfold.workers.pools.ray.library import ActorLost, Group, GroupRefused, Ray, RayNode, heads_of
from runfold.workers.pools.ray.pool import RayPool
from runfold.workers.pools.ray.slices import free, in_rays_words, mates, pod_of, waiting_words, whole
from support.slicehosts import HEAD, Hosts, host
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from runfold.events.facts import AnyFact
    from runfold.workers.facts import Facts
    from runfold.workers.pools.local import Granted
    from runfold.workers.pools.pool import Watched

V4 = slice_of("2x2x2", "v4")
IDENTITY = "-0123456789ab"


def demand(run: str, num_workers: int, **changes: object) -> Demand:
    values: dict[str, object] = {
        "resources": {"CPU": 1.0, "TPU": 4.0},
        "accepted_at": run,
        "accelerator_type": "v4",
        "slice": V4,
        **changes,
    }
    return Demand(run=run, attempt=1, num_workers=num_workers, **values)  # type: ignore[arg-type]  # by name


@pytest.fixture
def hosts() -> Hosts:
    return Hosts(host("a", 1), host("a", 0), host("b", 0), host("b", 1))


@asynccontextmanager
async def looking(hosts: Hosts) -> AsyncIterator[RayPool]:
    """A pool that has seen its cluster, for as long as the block lasts."""
    made = RayPool(cast("Ray", hosts), "runfold-", IDENTITY)
    await made.look_around()
    try:
        yield made
    finally:
        await made.book.close()


@asynccontextmanager
async def serving(pool: RayPool) -> AsyncIterator[None]:
    """A pool at work, for as long as the block lasts."""
    task = asyncio.create_task(pool.serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def pool(hosts: Hosts) -> AsyncIterator[RayPool]:
    async with looking(hosts) as made, serving(made):
        yield made


async def granted(pool: RayPool) -> Granted:
    """Wait for places to be given, once."""
    found: list[Granted] = []

    def given() -> bool:
        found.extend(pool.book.grant())
        return bool(found)

    await until(given)
    assert len(found) == 1
    return found[0]


async def given_up(pool: RayPool) -> GivenUp:
    """Wait for a demand to be given up."""
    found: list[GivenUp] = []

    def said() -> bool:
        found.extend(pool.book.given_up())
        return bool(found)

    await until(said)
    return found[0]


# --- reserved, and given back


async def test_heads_first_then_one_placement_over_all_slices(hosts: Hosts, pool: RayPool) -> None:
    pool.book.ask(demand("two", 4))
    places = (await granted(pool)).places
    assert {(place.node, place.slots) for place in places} == {("a0", 1), ("a1", 1), ("b0", 1), ("b1", 1)}
    names = [name for name, _ in hosts.asked]
    assert ["-head-0-" in names[0], "-head-1-" in names[1], "-head-" in names[2]] == [True, True, False]
    first, second, all_of_it = (selectors for _, selectors in hosts.asked)
    assert first == [{"ray.io/tpu-worker-id": "0", "ray.io/tpu-pod-type": "v4-16"}]
    assert second == [{**first[0], "ray.io/tpu-slice-name": "!in(a)"}]
    assert all_of_it == [{"ray.io/tpu-slice-name": name} for name in "aabb"]
    assert [one.name for one in heads_of(names[2], await hosts.groups(IDENTITY))] == names[:2]
    pool.book.release("two")
    await until(lambda: not hosts.held)


async def test_a_head_in_use_is_waited_for_then_all_is_given_back_and_it_is_said(hosts: Hosts, pool: RayPool) -> None:
    hosts.use("b0", **{HEAD: 1.0})
    pool.book.ask(demand("two", 4, start_within_s=3.0))
    said = await given_up(pool)
    assert (said.demand.run, said.kind) == ("two", "late")
    assert said.reason == "1 of 2 slices had a head in time: the others are in use, or not there"
    await until(lambda: not (hosts.held or hosts.pending))
    assert pool.book.waiting() == {}
    assert Slots({}).given_up() == []


async def test_hosts_in_use_are_waited_for_no_longer_than_heads(hosts: Hosts, pool: RayPool) -> None:
    """Somebody uses a host whose head is free: he is seen, and the other slice is taken; else the wait has an end."""
    hosts.use("a1", TPU=4.0)
    await until(lambda: pool.book.avoided(demand("one", 2)) == ("a",))
    pool.book.ask(demand("one", 2))
    assert {place.node for place in (await granted(pool)).places} == {"b0", "b1"}
    pool.book.ask(demand("other", 2, start_within_s=3.0))
    assert (await given_up(pool)).kind == "late"
    assert [name for name, _ in hosts.asked if "other" in name]
    pool.book.ask(demand("third", 2))
    await until(lambda: any("third" in name for name in hosts.pending))
    hosts.use("a1", TPU=-4.0)
    assert {place.node for place in (await granted(pool)).places} == {"a0", "a1"}


async def test_a_whole_that_is_not_to_be_had_in_time_is_given_up_with_its_heads(hosts: Hosts, pool: RayPool) -> None:
    hosts.left["id-a1"]["CPU"] = hosts.left["id-b1"]["CPU"] = 0.0
    pool.book.ask(demand("one", 2, start_within_s=3.0))
    said = await given_up(pool)
    assert said.reason.startswith("not all hosts of a were to be had in time")
    await until(lambda: not (hosts.held or hosts.pending))


@pytest.mark.parametrize("error", [GroupRefused("no such bundle"), ActorLost("the cluster said no")])
async def test_what_goes_wrong_is_said_and_nothing_is_kept(hosts: Hosts, pool: RayPool, error: Exception) -> None:
    hosts.refuses = error
    pool.book.ask(demand("two", 4))
    said = await given_up(pool)
    assert (said.kind, said.reason) == ("failed", f"the slices were not reserved: {error}")
    assert not hosts.held


async def test_a_head_that_names_no_slice_is_an_error(hosts: Hosts, pool: RayPool) -> None:
    nameless = replace(host("c", 0), labels={"ray.io/tpu-worker-id": "0", "ray.io/tpu-pod-type": "v4-16"})
    hosts.lose("a0", "a1", "b0", "b1")
    hosts.join(nameless)
    await until(lambda: list(pool.book.nodes) == ["c0"])
    pool.book.ask(demand("one", 2))
    said = await given_up(pool)
    assert "no label ray.io/tpu-slice-name" in said.reason
    await until(lambda: not hosts.held)


async def test_who_waits_no_more_has_nothing_left(hosts: Hosts, pool: RayPool) -> None:
    hosts.use("b0", **{HEAD: 1.0})
    pool.book.ask(demand("two", 4))
    await until(lambda: len(hosts.held) == 1 and len(hosts.pending) == 1)
    pool.book.withdraw("two")
    await until(lambda: not (hosts.held or hosts.pending))


@pytest.mark.parametrize("changes", [{}, {"slice": None, "accelerator_type": None, "resources": {"CPU": 0.5}}])
async def test_a_group_that_comes_to_be_when_nobody_waits_is_given_back_before_the_pool_is_closed(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """The call goes on in a thread of its own when who waited for it is cancelled."""
    begun, goes = asyncio.Event(), asyncio.Event()
    create = hosts.create_group

    async def slow(*given: object) -> tuple[Group, Awaitable[object]]:
        begun.set()
        await goes.wait()
        return await create(*given)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(hosts, "create_group", slow)
    async with looking(hosts) as made:
        async with serving(made):
            made.book.ask(demand("two", 4, **changes))
            await begun.wait()
        goes.set()
    assert {**hosts.held, **hosts.pending} == {}


async def test_what_an_earlier_supervisor_reserved_and_nobody_is_at_work_in_is_given_back(hosts: Hosts) -> None:
    async with looking(hosts) as earlier:
        async with serving(earlier):
            earlier.book.ask(demand("two", 4))
            await granted(earlier)
        assert len(hosts.held) == 3
        async with looking(hosts):
            await until(lambda: not hosts.held)


def desk(attempt: int = 1) -> tuple[Desk, list[AnyFact]]:
    """A desk of the run `two`, and what it says."""
    said: list[AnyFact] = []
    facts = SimpleNamespace(source="pool-ray", boot="b", say=said.append, superseded=False)
    wish = Assignment(run="two", epoch=1, n=1, hash="", attempt=attempt, want="place", num_workers=4)
    site = Site(url="", namespace="", pool="ray", base_dir="")
    return Desk(wish, cast("Facts", facts), site, lambda *_: cast("Watched", None), lambda: None), said


def test_a_run_says_which_slices_it_waits_for_and_that_they_were_not_to_be_had() -> None:
    one, said = desk()
    words = waiting_words(demand("two", 4), V4, 1)
    assert words == "2 whole slices of v4 2x2x2 needed, 1 free"
    one.waits(Waiting(ahead=1, free=3, needed=4, what=words))
    one.waits(Waiting(ahead=0, free=3, needed=4, what=words))
    one.waits(Waiting(ahead=0, free=3, needed=4, what=words))
    one.not_placed(GivenUp(demand=demand("two", 4), kind="late", reason="none came"))
    queued, busy, late = said
    assert isinstance(queued, Queued)
    assert isinstance(busy, PlacementFailed)
    assert isinstance(late, PlacementFailed)
    assert (busy.verdict, busy.reason, late.verdict, late.reason) == ("busy", words, "late", "none came")
    assert one.here.refused == 1, "it is not asked for again in this attempt"
    later, said = desk(attempt=2)
    later.not_placed(GivenUp(demand=demand("two", 4), kind="late", reason="none came"))
    assert (said, later.here.refused) == ([], None)


async def test_what_waits_for_slices_says_so(hosts: Hosts, pool: RayPool) -> None:
    hosts.use("b0", **{HEAD: 1.0})
    await until(lambda: pool.book.avoided(demand("two", 4)) == ("b",))
    pool.book.ask(demand("two", 4))
    assert pool.book.waiting()["two"].what == "2 whole slices of v4 2x2x2 needed, 1 free"


# --- what there is room for


async def test_room_is_counted_in_slices_that_are_whole_and_free_or_ones_own(hosts: Hosts, pool: RayPool) -> None:
    hosts.join(host("c", 0), host("d", 0, pod_type="v4-32"), host("d", 1, pod_type="v4-32"))
    await until(lambda: len(pool.book.nodes) == 7)
    wanted = demand("two", 6)
    room = pool.book.room(wanted)
    assert (room.fits, room.slices, room.whole) == (4, 2, {"a0": 1, "a1": 1, "b0": 1, "b1": 1})
    pool.book.ask(demand("two", 4))
    await granted(pool)
    assert (pool.book.room(wanted).fits, pool.book.room(wanted).slices) == (4, 2)
    await until(lambda: pool.book.room(demand("other", 6)).fits == 0)
    other = pool.book.room(demand("other", 6))
    assert (other.fits, other.slices, other.room) == (0, 0, {"a0": 0, "a1": 0, "b0": 0, "b1": 0})
    # Who waits with a better claim takes nothing of what the run has.
    pool.book.ask(demand("before", 4, priority=1))
    assert (pool.book.room(wanted).fits, pool.book.room(wanted).slices) == (4, 2)
    pool.book.withdraw("before")
    # A host that the run stays off takes its slice along; where it is drained, for everybody.
    off = pool.book.room(replace(wanted, excluded=("b1",)))
    assert (off.slices, off.whole) == (1, {"a0": 1, "a1": 1, "b0": 0, "b1": 1})
    hosts.going = {"id-b1": None}
    await until(lambda: pool.book.room(wanted).slices == 1)
    notices = pool.notices()
    assert [(notice.nodes, notice.mates) for notice in notices] == [(("b1",), ("b0",))]
    hosts.going = {}
    await until(lambda: pool.book.room(wanted).slices == 2)
    assert [(notice.cancelled, notice.mates) for notice in pool.notices()] == [(True, ("b0",))]
    hosts.lose("b1")
    await until(lambda: pool.book.room(wanted).slices == 1)
    assert pool.book.room(wanted).fits == 2


async def test_heads_on_their_way_are_ones_own_as_well(hosts: Hosts, pool: RayPool) -> None:
    hosts.left["id-b1"]["CPU"] = 0.0
    pool.book.ask(demand("two", 4))
    await until(lambda: len(hosts.held) == 2)
    hosts.lose("b1")
    await until(lambda: pool.book.room(demand("two", 4)).slices == 1)
    assert pool.book.room(demand("two", 4)).fits == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"resources": {"CPU": 1.0, "TPU": 2.0}, "num_workers": 8}, "the whole pool has a0: 1 CPU"),
        ({"resources": {"TPU": 2.0}, "num_workers": 8}, None),
        ({"num_workers": 6}, "6 ranks need 3 whole slices of v4 2x2x2"),
        ({"resources": {"TPU": 3.0}}, "of a host Ray gives 1, 2, 4, 8"),
        ({"resources": {"TPU": 8.0}, "num_workers": 1}, "8 TPU each"),
        ({"num_workers": 6, "attempt": 2}, None),
        ({"slice": slice_of("2x4", "v6e"), "accelerator_type": "v6e", "resources": {"TPU": 8.0}}, "tpu-pod-type=v6e-8"),
    ],
)
async def test_what_can_never_be(pool: RayPool, changes: dict[str, object], why: str | None) -> None:
    said = pool.book.never(replace(demand("one", 4), **changes))
    assert (said is None) if why is None else (said is not None and why in said)


# --- in words of Ray's


@pytest.mark.parametrize(
    ("given", "accelerator", "selectors"),
    [
        ({}, None, ()),
        ({"slice": None}, "TPU-V4", ()),
        ({"slice": None, "accelerator_type": "TPU-V6E"}, "TPU-V6E", ()),
        ({"slice": None, "accelerator_type": "mine"}, "mine", ()),
        ({"resources": {"GPU": 1.0}, "slice": None, "accelerator_type": "T4"}, "T4", ()),
        ({"slice": slice_of("2x4", "v6e")}, None, ({"ray.io/tpu-pod-type": "v6e-8"},)),
        (
            {"slice": slice_of("2x4", "v6e"), "selectors": ({"zone": "x"},)},
            None,
            ({"zone": "x", "ray.io/tpu-pod-type": "v6e-8"},),
        ),
    ],
)
def test_kinds_are_told_by_rays_names_and_labels(
    given: dict[str, object], accelerator: str | None, selectors: tuple[dict[str, str], ...]
) -> None:
    found = in_rays_words(replace(demand("one", 2), **given))
    assert (found.accelerator_type, found.selectors) == (accelerator, selectors)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([host("a", 0), host("a", 1)], {"a": ("a0", "a1")}),
        ([host("b", 1), host("a", 1), host("b", 0), host("a", 0)], {"a": ("a0", "a1"), "b": ("b0", "b1")}),
        # A host is missing, the first one is, or some of the chips.
        ([host("a", 0)], {}),
        ([host("a", 2), host("a", 1)], {}),
        ([host("a", 0), host("a", 1, chips=2.0)], {}),
        # Another kind; another topology with as many chips.
        ([host("a", 0, pod_type="v4-8"), host("a", 1, pod_type="v4-8")], {}),
        ([host("a", 0, topology="2x4x1"), host("a", 1, topology="2x4x1")], {}),
        ([host("a", 0, topology="2x2x2"), host("a", 1)], {"a": ("a0", "a1")}),
    ],
)
def test_a_slice_is_whole_or_it_is_none(nodes: list[RayNode], found: dict[str, tuple[str, ...]]) -> None:
    by_name = {node.name: node for node in nodes}
    assert whole(by_name, V4) == found
    assert free(by_name, {node.name: node.resources for node in nodes}, V4) == found
    assert free(by_name, {}, V4) == {}


def test_a_host_that_came_again_stands_for_the_one_that_was_there() -> None:
    again = replace(host("a", 1), id="id-new", name="a1-new")
    assert whole({"a0": host("a", 0), "a1": host("a", 1), "a1-new": again}, V4) == {"a": ("a0", "a1-new")}


def test_nodes_of_a_slice_go_together() -> None:
    plain = RayNode(id="id-x", name="x", addr="", alive=True)
    nodes = {"a0": host("a", 0), "a1": host("a", 1), "b0": host("b", 0), "x": plain, "y": replace(plain, name="y")}
    assert mates(nodes, "a0") == ("a1",)
    assert mates(nodes, "x") == ()
    assert pod_of(nodes["a1"]) == ("a", 1)
    assert pod_of(plain) == ("", 0)
