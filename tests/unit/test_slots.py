"""Who gets a pool's slots: whole or not at all, by priority then acceptance, exactly counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from runfold.events.config import PlacementStrategy
from runfold.events.facts import PlaceOffer
from runfold.workers.pools.local import Demand, Slots, Waiting


def demand(
    run: str,
    ranks: int = 1,
    cpu: float = 1.0,
    *,
    priority: int = 0,
    at: str = "2026-01-01T00:00:00Z",
    strategy: PlacementStrategy = "PACK",
    **more: float,
) -> Demand:
    return Demand(
        run=run,
        attempt=1,
        num_workers=ranks,
        resources={"CPU": cpu, **more},
        priority=priority,
        accepted_at=at,
        strategy=strategy,
    )


def pool(**nodes: float) -> Slots:
    return Slots({node: {"CPU": cpus} for node, cpus in nodes.items()})


def granted(slots: Slots) -> list[str]:
    return [one.demand.run for one in slots.grant()]


def test_a_group_gets_its_places_whole_or_not_at_all() -> None:
    slots = pool(local=4)
    slots.ask(demand("a", 3))
    slots.ask(demand("b", 2, at="2026-01-02T00:00:00Z"))
    assert granted(slots) == ["a"]
    assert slots.waiting() == {"b": Waiting(ahead=0, free=1, needed=2)}
    slots.release("a")
    assert granted(slots) == ["b"]


def test_priority_comes_first_then_acceptance() -> None:
    slots = pool(local=1)
    slots.ask(demand("late", at="2026-01-03T00:00:00Z"))
    slots.ask(demand("early", at="2026-01-02T00:00:00Z"))
    slots.ask(demand("urgent", priority=5, at="2026-01-09T00:00:00Z"))
    order = []
    while names := granted(slots):
        order += names
        slots.release(names[0])
    assert order == ["urgent", "early", "late"]


def test_nobody_overtakes_the_first_that_waits() -> None:
    slots = pool(local=4)
    slots.ask(demand("running", 2))
    assert granted(slots) == ["running"]
    slots.ask(demand("large", 4, at="2026-01-02T00:00:00Z"))
    slots.ask(demand("small", 1, at="2026-01-03T00:00:00Z"))
    assert granted(slots) == []
    assert slots.waiting()["small"] == Waiting(ahead=1, free=2, needed=1)


def test_fractions_are_counted_exactly() -> None:
    slots = pool(local=1)
    for number in range(10):
        slots.ask(demand(f"tenth-{number}", cpu=0.1))
    assert len(granted(slots)) == 10
    assert slots.free == 0
    slots.ask(demand("one-more", cpu=0.1))
    assert granted(slots) == []
    for number in range(10):
        slots.release(f"tenth-{number}")
    assert slots.free == 1


def test_what_can_never_fit_says_why() -> None:
    slots = pool(local=2)
    assert slots.never(demand("a", 2)) is None
    assert slots.never(demand("a", 3)) == "3 ranks with 1 CPU each, and the whole pool has local: 2 CPU"
    assert slots.never(demand("a", 1, GPU=1)) == "each rank needs 1 GPU, and this pool has no GPU"


def test_a_run_that_holds_its_old_places_waits_for_them_to_be_given_back() -> None:
    slots = pool(local=4)
    slots.ask(demand("a", 1))
    assert granted(slots) == ["a"]
    slots.ask(demand("a", 2))
    assert granted(slots) == []
    slots.release("a")
    assert granted(slots) == ["a"]


def test_withdrawn_and_released_runs_leave_nothing_behind() -> None:
    slots = pool(local=2)
    slots.ask(demand("a", 2))
    slots.withdraw("a")
    slots.release("a")
    assert (granted(slots), slots.free, slots.waiting()) == ([], 2, {})


@pytest.mark.parametrize(
    ("strategy", "places"),
    [
        ("PACK", {"b": 3, "a": 1}),
        ("SPREAD", {"a": 2, "b": 2}),
        ("STRICT_PACK", None),
        ("STRICT_SPREAD", None),
    ],
)
def test_strategies(strategy: PlacementStrategy, places: dict[str, int] | None) -> None:
    slots = pool(a=2, b=3)
    slots.ask(demand("x", 4, strategy=strategy))
    found = slots.grant()
    assert (found != []) == (places is not None)
    if places is not None:
        assert {place.node: place.slots for place in found[0].places} == places


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.1, 0.5, 1.0, 2.5]), st.booleans()), max_size=30))
def test_nothing_is_ever_given_twice(asks: list[tuple[int, float, bool]]) -> None:
    slots = pool(a=3, b=2)
    held: dict[str, float] = {}
    for number, (ranks, cpu, give_back) in enumerate(asks):
        one = demand(f"r{number}", ranks, cpu, at=f"{number:04}")
        if slots.never(one) is None:
            slots.ask(one)
        for got in slots.grant():
            assert sum(place.slots for place in got.places) == got.demand.num_workers
            held[got.demand.run] = got.demand.num_workers * got.demand.resources["CPU"]
        assert sum(held.values()) <= 5 + 1e-9
        if give_back and held:
            run, _ = held.popitem()
            slots.release(run)
    for run in held:
        slots.release(run)
    for run in slots.waiting():
        slots.withdraw(run)
    assert slots.free == 5


def test_a_groups_ranks_on_one_node_when_that_is_asked_for() -> None:
    slots = pool(a=2, b=3)
    slots.ask(demand("x", 3, strategy="STRICT_PACK"))
    slots.ask(demand("y", 2, strategy="STRICT_SPREAD", at="2026-01-02T00:00:00Z"))
    places = [{place.node: place.slots for place in one.places} for one in slots.grant()]
    assert places == [{"b": 3}]
    slots.release("x")
    places = [{place.node: place.slots for place in one.places} for one in slots.grant()]
    assert places == [{"a": 1, "b": 1}]
    assert slots.nodes == {"a": 2, "b": 3}


def test_what_an_earlier_supervisor_gave_is_held_until_it_is_given_back() -> None:
    slots = pool(local=4, other=2)
    for node, count in (("local", 3), ("other", 2)):
        slots.hold(demand("a", 5), PlaceOffer(node=node, slots=count))
    assert slots.free == 1
    slots.ask(demand("b", 2))
    assert granted(slots) == []
    slots.release("a")
    assert granted(slots) == ["b"]


def test_a_node_that_is_gone_or_smaller_by_now_is_no_trouble() -> None:
    slots = pool(local=2)
    slots.hold(demand("a"), PlaceOffer(node="gone", slots=1))
    slots.hold(demand("b"), PlaceOffer(node="local", slots=4))
    assert slots.free == 0
    slots.ask(demand("c"))
    assert granted(slots) == []
    slots.release("a")
    slots.release("b")
    assert granted(slots) == ["c"]


def test_nodes_to_stay_off_are_waited_for_and_keep_nobody_else_back() -> None:
    slots = Slots({"node-a": {"CPU": 2.0}, "node-b": {"CPU": 2.0}})
    off = replace(demand("first", 1), excluded=("node-a", "node-b"))
    assert slots.never(off) is None
    slots.ask(off)
    slots.ask(demand("second", 1))
    assert [granted.demand.run for granted in slots.grant()] == ["second"]
    assert slots.waiting()["first"].free == 0
    slots.ask(replace(off, excluded=("node-a",)))
    assert [granted.places[0].node for granted in slots.grant()] == ["node-b"]


def test_who_waits_for_room_on_nodes_that_it_may_use_keeps_its_turn() -> None:
    slots = Slots({"node-a": {"CPU": 1.0}, "node-b": {"CPU": 1.0}})
    slots.ask(replace(demand("holds", 1), excluded=("node-b",)))
    slots.grant()
    slots.ask(replace(demand("first", 1), excluded=("node-b",)))
    slots.ask(demand("second", 1))
    assert slots.grant() == []
