"""What a pool has room for, for one run; other sizes of it, and who must leave then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from runfold.events.config import PlacementStrategy
from runfold.events.facts import PlaceOffer
from runfold.workers.pools.local import Demand, Slots
from runfold.workers.pools.room import largest, shared


def demand(run: str, ranks: int = 4, cpu: float = 1.0, strategy: PlacementStrategy = "PACK") -> Demand:
    at = "2026-01-01T00:00:00Z"
    return Demand(run=run, attempt=1, num_workers=ranks, resources={"CPU": cpu}, strategy=strategy, accepted_at=at)


def pool(**nodes: float) -> Slots:
    return Slots({node: {"CPU": cpus} for node, cpus in nodes.items()})


def test_room_is_what_is_free_and_what_the_run_holds_itself() -> None:
    slots = pool(a=2, b=2)
    slots.ask(demand("other", 1))
    slots.ask(demand("mine", 2))
    slots.grant()
    room = slots.room(demand("mine", 4))
    assert (room.slots, room.whole) == ({"a": 2, "b": 2}, {"a": 2, "b": 2})
    assert room.fits == sum((room.room or {}).values()) == 3
    assert slots.room(demand("mine", 2)).fits == 2, "no more than were asked about"


def test_fractions_are_counted_exactly() -> None:
    assert pool(a=1).room(demand("r", 9, cpu=0.1)).fits == 9
    assert pool(a=1).room(demand("r", 99, cpu=0.1)).room == {"a": 10}
    assert pool(a=1, b=0.5).room(demand("r", 9, cpu=0.3)).fits == 4


@pytest.mark.parametrize(("strategy", "fits"), [("PACK", 5), ("SPREAD", 5), ("STRICT_PACK", 3), ("STRICT_SPREAD", 2)])
def test_the_strategy_is_regarded(strategy: PlacementStrategy, fits: int) -> None:
    assert pool(a=3, b=2).room(demand("r", 8, strategy=strategy)).fits == fits


def test_labels_are_regarded() -> None:
    slots = Slots({"a": {"CPU": 2.0}, "b": {"CPU": 2.0}}, {"a": {"disk": "fast"}, "b": {}})
    fast = replace(demand("r", 4), selectors=({"disk": "fast"},))
    assert (slots.room(fast).fits, slots.room(fast).room, slots.room(fast).whole) == (
        2,
        {"a": 2, "b": 0},
        {"a": 2, "b": 0},
    )
    each = replace(demand("r", 3), selectors=({"disk": "fast"}, {}, {"disk": "fast"}))
    assert slots.room(each).fits == 3
    assert slots.room(each).room == {"a": 2, "b": 1}


def test_nodes_that_the_run_stays_off_count() -> None:
    room = pool(a=2, b=2).room(replace(demand("r", 4), excluded=("a",)))
    assert (room.fits, room.room) == (4, {"a": 2, "b": 2})


def test_who_waits_before_a_run_has_the_better_claim_to_what_is_free() -> None:
    slots = pool(a=4)
    slots.ask(demand("mine", 2))
    slots.grant()
    slots.ask(replace(demand("urgent", 3), priority=1))
    slots.grant()
    assert slots.room(demand("mine", 4)).fits == 2
    slots.ask(replace(demand("urgent", 9), priority=1, excluded=("a",)))
    slots.grant()
    assert slots.room(demand("mine", 4)).fits == 4, "who waits for nodes to stay off keeps nobody back"
    slots.withdraw("urgent")
    slots.ask(replace(demand("later", 3), accepted_at="2026-02-01T00:00:00Z"))
    assert slots.room(demand("mine", 4)).fits == 4


# --- other sizes


def test_a_node_has_as_many_slots_as_it_is_set_to() -> None:
    slots = pool(a=2, b=2)
    assert slots.resize("a", 0) is None
    assert (slots.nodes, slots.free, slots.room(demand("r")).fits) == ({"b": 2}, 2, 2)
    assert slots.never(demand("r", 4)) is None, "what was there once may come back"
    assert slots.resize("a", 3) is None
    assert (slots.nodes, slots.free) == ({"a": 3, "b": 2}, 5)
    assert "there is no node 'c' in this pool; there are a, b" in str(slots.resize("c", 1))


def test_a_pool_is_filled_node_after_node() -> None:
    slots = pool(a=2, b=2)
    assert slots.resize(None, 3) is None
    assert slots.nodes == {"a": 2, "b": 1}
    assert slots.resize(None, 0) is None
    assert slots.nodes == {}
    assert slots.resize(None, 4) is None
    assert "5 slots are more than the 4 of its 2 nodes" in str(slots.resize(None, 5))
    alone = pool(a=2)
    assert alone.resize(None, 7) is None
    assert alone.nodes == {"a": 7}


def test_who_comes_last_leaves_first_and_nobody_without_need() -> None:
    slots = pool(a=3, b=1)
    for run, priority in (("low", 0), ("high", 5)):
        slots.hold(replace(demand(run, 1), priority=priority), PlaceOffer(node="a", slots=1))
    assert slots.overdrawn() == []
    slots.resize("a", 1)
    assert slots.overdrawn() == [("low", "a")]
    slots.resize("a", 0)
    assert slots.overdrawn() == [("low", "a"), ("high", "a")]
    slots.release("low")
    assert slots.overdrawn() == [("high", "a")]
    slots.resize("a", 3)
    assert slots.overdrawn() == []
    assert slots.free == 3


def test_nothing_is_granted_of_what_is_not_there() -> None:
    slots = pool(a=2)
    slots.hold(demand("old", 2), PlaceOffer(node="a", slots=2))
    slots.resize("a", 1)
    slots.ask(demand("new", 1))
    assert slots.grant() == []
    slots.release("old")
    assert [one.demand.run for one in slots.grant()] == ["new"]


@given(st.integers(0, 12), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), min_size=2))
def test_sharing_out_loses_and_makes_nothing(slots: int, nodes: dict[str, int]) -> None:
    given_out = shared(slots, nodes)
    if slots > sum(nodes.values()):
        assert given_out is None
    else:
        assert given_out is not None
        assert sum(given_out.values()) == slots
        assert all(given_out[node] <= most for node, most in nodes.items())


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_largest_is_found(most: int, limit: int) -> None:
    assert largest(most, lambda size: size <= limit) == min(most, limit)
