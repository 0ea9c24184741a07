"""Who is which rank: node order, GPU order, pod order, and ranks that keep their nodes: by table."""

from __future__ import annotations

import pytest

from runfold.controller.layout import lay_out
from runfold.events.state import Place, Ready

Laid = list[tuple[int, int, int, int]]
"""Place, slot, local rank and node rank of each rank."""


def place(node: str, slots: int, gpus: tuple[tuple[str, ...], ...] = (), pod: str = "") -> Place:
    return Place(node=node, slots=slots, source=node, ready=Ready(addr="", port=1, offset_s=0.0, gpus=gpus, pod=pod))


def laid(places: list[Place], workers: int, homes: tuple[str, ...] = (), size: int | None = None) -> Laid:
    found = lay_out(places, workers, homes, size)
    assert [one.rank for one in found] == list(range(workers))
    return [(one.place, one.its_slot, one.local_rank, one.node_rank) for one in found]


@pytest.mark.parametrize(
    ("places", "workers", "expected"),
    [
        # Node after node, in the order in which they were given.
        ([place("b", 2), place("a", 1)], 3, [(0, 0, 0, 0), (0, 1, 1, 0), (1, 0, 0, 1)]),
        # Two places on one node are one node, wherever the second stands.
        ([place("a", 1), place("b", 1), place("a", 1)], 3, [(0, 0, 0, 0), (2, 0, 1, 0), (1, 0, 0, 1)]),
        # Slots that are not needed stay free.
        ([place("a", 2), place("b", 2)], 3, [(0, 0, 0, 0), (0, 1, 1, 0), (1, 0, 0, 1)]),
        # By the lowest GPU of each slot, as numbers.
        ([place("a", 3, (("10",), ("2",), ("9", "1")))], 3, [(0, 2, 0, 0), (0, 1, 1, 0), (0, 0, 2, 0)]),
        # By name where they are no numbers; no GPU counts as 0.
        ([place("a", 2, (("GPU-b",), ("GPU-a",)))], 2, [(0, 1, 0, 0), (0, 0, 1, 0)]),
        ([place("a", 2, (("3",), ()))], 2, [(0, 1, 0, 0), (0, 0, 1, 0)]),
        # GPUs are compared on their node alone.
        ([place("a", 1, (("7",),)), place("b", 1, (("0",),))], 2, [(0, 0, 0, 0), (1, 0, 0, 1)]),
        # TPUs: by the pod's name, a missing one first.
        (
            [place("c", 1, pod="pod-2"), place("a", 1), place("b", 1, pod="pod-1")],
            3,
            [(1, 0, 0, 0), (2, 0, 0, 1), (0, 0, 0, 2)],
        ),
    ],
)
def test_ranks_are_given_in_the_peers_order(places: list[Place], workers: int, expected: Laid) -> None:
    assert laid(places, workers) == expected


@pytest.mark.parametrize(
    ("homes", "expected"),
    [
        (("a", "a", "b"), [(0, 0, 0, 0), (0, 1, 1, 0), (1, 0, 0, 1)]),
        (("b", "a", "a"), [(1, 0, 0, 0), (0, 0, 0, 1), (0, 1, 1, 1)]),
        (("gone", "b", "a"), [(0, 0, 0, 0), (1, 0, 0, 1), (0, 1, 1, 0)]),
        (("b", "b", "b"), [(1, 0, 0, 0), (1, 1, 1, 0), (0, 0, 0, 1)]),
        (("b", "a", "a", "a"), [(1, 0, 0, 0), (0, 0, 0, 1), (0, 1, 1, 1)]),
    ],
)
def test_ranks_keep_their_nodes_where_these_are_still_there(homes: tuple[str, ...], expected: Laid) -> None:
    assert laid([place("a", 2), place("b", 2)], 3, homes) == expected


def test_who_keeps_its_node_has_its_gpus_in_order() -> None:
    node = place("a", 3, (("2",), ("0",), ("1",)))
    assert laid([node], 3, ("a", "a", "a")) == [(0, 1, 0, 0), (0, 2, 1, 0), (0, 0, 2, 0)]


def test_a_slot_is_named_only_where_it_is_not_that_of_the_local_rank() -> None:
    plain = lay_out([place("a", 2)], 2)
    assert [one.slot for one in plain] == [None, None]
    assert [one.slot for one in lay_out([place("a", 2, (("1",), ("0",)))], 2)] == [1, 0]


def test_within_replica_groups_local_ranks_and_nodes_are_counted_anew() -> None:
    places = [place("a", 3), place("b", 3)]
    assert laid(places, 6, (), 2) == [
        (0, 0, 0, 0),
        (0, 1, 1, 0),
        (0, 2, 0, 0),
        (1, 0, 0, 1),
        (1, 1, 0, 0),
        (1, 2, 1, 0),
    ]
