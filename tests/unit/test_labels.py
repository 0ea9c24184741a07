"""Which nodes a selector allows, and ranks with different selectors shared out over nodes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from runfold.events.config import PlacementStrategy
from runfold.events.facts import PlaceOffer
from runfold.workers.pools.labels import fits
from runfold.workers.pools.local import Demand, Slots

ZONES = {"a1": {"zone": "a"}, "a2": {"zone": "a", "disk": "ssd"}, "b1": {"zone": "b"}}


def demand(ranks: int, *selectors: dict[str, str], strategy: PlacementStrategy = "PACK") -> Demand:
    return Demand(
        run="r", attempt=1, num_workers=ranks, resources={"CPU": 1.0}, strategy=strategy, selectors=tuple(selectors)
    )


def book(**slots: float) -> Slots:
    return Slots({node: {"CPU": cpus} for node, cpus in slots.items()}, ZONES)


def placed(slots: Slots, wanted: Demand) -> tuple[PlaceOffer, ...] | None:
    slots.ask(wanted)
    return next((one.places for one in slots.grant()), None)


@pytest.mark.parametrize(
    ("selector", "fitting"),
    [
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": "!b"}, True),
        ({"zone": "!a"}, False),
        ({"zone": "in(a, b)"}, True),
        ({"zone": "in(b,c)"}, False),
        ({"zone": "!in(b, c)"}, True),
        ({"disk": "!ssd"}, True),
        ({"disk": "ssd"}, False),
        ({"zone": "a", "disk": "ssd"}, False),
        ({}, True),
    ],
)
def test_a_selector_says_what_labels_must_be(selector: dict[str, str], fitting: bool) -> None:
    assert fits(selector, {"zone": "a"}) is fitting


def test_ranks_stand_where_the_selector_allows_and_wait_for_it() -> None:
    slots = book(a1=1, a2=1, b1=4)
    assert placed(slots, demand(2, {"zone": "a"})) == (PlaceOffer(node="a1", slots=1), PlaceOffer(node="a2", slots=1))
    slots.ask(replace(demand(1, {"zone": "a"}), run="s"))
    assert slots.grant() == []
    slots.release("r")
    assert [one.places for one in slots.grant()] == [(PlaceOffer(node="a1", slots=1),)]


def test_every_node_can_be_named() -> None:
    assert placed(book(a1=4, b1=4), demand(2, {"runfold.node": "b1"})) == (PlaceOffer(node="b1", slots=2),)


def test_each_rank_may_have_a_selector_of_its_own() -> None:
    ssd, anywhere, b = {"disk": "ssd"}, {"zone": "in(a, b)"}, {"zone": "b"}
    assert placed(book(a1=1, a2=1, b1=1), demand(3, anywhere, ssd, b)) == tuple(
        PlaceOffer(node=node, slots=1) for node in ("a1", "a2", "b1")
    )
    # A group that is smaller than it may be takes the first ones.
    assert placed(book(a1=1, a2=1, b1=1), demand(1, b, ssd)) == (PlaceOffer(node="b1", slots=1),)


def test_a_strategy_holds_for_each_selector() -> None:
    two = ({"zone": "a"}, {"zone": "in(a, b)"})
    assert placed(book(a1=1, a2=2, b1=1), demand(2, *two, strategy="STRICT_PACK")) == (PlaceOffer(node="a2", slots=2),)
    assert placed(book(a1=2), demand(2, *two, strategy="STRICT_SPREAD")) is None
    assert placed(book(a2=2, b1=2), demand(2, *two, strategy="SPREAD")) == (
        PlaceOffer(node="a2", slots=1),
        PlaceOffer(node="b1", slots=1),
    )


def test_what_no_node_fulfils_is_told_by_name() -> None:
    slots = book(a1=4, b1=1)
    why = slots.never(demand(1, {"zone": "c"}))
    assert why is not None
    assert "no node of this pool fulfils the label selector zone=c" in why
    assert "a1 has runfold.node=a1, zone=a; b1 has runfold.node=b1, zone=b" in why
    why = slots.never(demand(3, {"zone": "b"}))
    assert why == "3 ranks with 1 CPU each on nodes with zone=b, and the whole pool has a1: 4 CPU, b1: 1 CPU"
    assert slots.never(demand(4, {"zone": "a"})) is None


SELECTORS = st.sampled_from([{"zone": "a"}, {"zone": "b"}, {"disk": "ssd"}, {"zone": "!a"}, {}])


@given(
    st.lists(SELECTORS, min_size=1, max_size=4),
    st.tuples(*[st.integers(0, 2)] * 3),
    st.sampled_from(["PACK", "SPREAD", "STRICT_SPREAD", "STRICT_PACK"]),
)
def test_ranks_are_placed_whenever_there_is_a_way(
    selectors: list[dict[str, str]], cpus: tuple[int, int, int], strategy: PlacementStrategy
) -> None:
    """Compared with every way there is."""
    slots = dict(zip(ZONES, cpus, strict=True))
    most = {node: min(count, 1) if strategy == "STRICT_SPREAD" else count for node, count in slots.items()}
    ways = [
        way
        for way in product(ZONES, repeat=len(selectors))
        if all(fits(selector, ZONES[node]) for selector, node in zip(selectors, way, strict=True))
        and all(way.count(node) <= most[node] for node in ZONES)
        and (strategy != "STRICT_PACK" or len(set(way)) == 1)
    ]
    found = placed(book(**slots), demand(len(selectors), *selectors, strategy=strategy))
    assert (found is not None) is bool(ways)
    if found is not None:
        counts = {place.node: place.slots for place in found}
        assert counts in [{node: way.count(node) for node in ZONES if node in way} for way in ways]
