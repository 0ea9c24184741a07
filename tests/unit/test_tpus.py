"""What a rank's environment says of TPU chips and slices, and which rank is on which host: by table."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.controller.assignment import assignment as wish
from runfold.controller.layout import lay_out
from runfold.controller.replicas import failing
from runfold.events.assignment import Assignment, PlaceWanted, Rendezvous, Work
from runfold.events.config import FailureConfig, ScalingConfig
from runfold.events.slices import Slice, slice_of
from runfold.events.state import Place, Ready
from runfold.events.transitions import FailureDecided, RankLaid
from runfold.workers.devices import in_order
from runfold.workers.pipe import RunnerSpec
from runfold.workers.placing import demand_of
from runfold.workers.starting import start_of
from runfold.workers.tpus import chips_environment, pod_said, port_environment, slices_environment
from support.runs import Run

V4 = slice_of("2x2x2", "v4")
"""Two hosts of four chips."""


@pytest.mark.parametrize(
    ("chips", "slots", "slot", "expected"),
    [
        # The pool says nothing where a rank has its host to itself.
        (None, 1, 0, {}),
        ("", 2, 0, {}),
        ("2", 1, 0, {"TPU_VISIBLE_CHIPS": "2", "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1", "TPU_HOST_BOUNDS": "1,1,1"}),
        (
            "0,1,2,3",
            2,
            1,
            {"TPU_VISIBLE_CHIPS": "2,3", "TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1", "TPU_HOST_BOUNDS": "1,1,1"},
        ),
        (
            "0,1,2,3",
            4,
            3,
            {"TPU_VISIBLE_CHIPS": "3", "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1", "TPU_HOST_BOUNDS": "1,1,1"},
        ),
        ("0,1,2,3,4,5,6,7", 2, 0, {"TPU_VISIBLE_CHIPS": "0,1,2,3"}),
        # What does not go up is left as the node has it.
        ("0,1,2", 2, 0, {}),
        ("0,1", 2, 5, {}),
    ],
)
def test_a_rank_sees_its_chips_alone(chips: str | None, slots: int, slot: int, expected: dict[str, str]) -> None:
    assert chips_environment(chips, slots, slot) == expected


def test_chips_are_named_in_order() -> None:
    assert in_order(["10", "2", "0", "2"]) == "0,2,10"


@pytest.mark.parametrize(
    ("kind", "tpus", "ranks", "index", "expected"),
    [
        (None, 1.0, 4, 0, {}),
        (V4, 4.0, 2, 1, {}),
        (V4, 4.0, 4, 1, {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "0"}),
        (V4, 4.0, 4, 2, {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}),
        (V4, 1.0, 16, 9, {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}),
        # The last slice takes what is over.
        (V4, 3.0, 5, 4, {"MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "2"}),
        (slice_of("2x4", "v6e"), 8.0, 3, 2, {"MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "2"}),
    ],
)
def test_several_slices_know_of_each_other(
    kind: Slice | None, tpus: float, ranks: int, index: int, expected: dict[str, str]
) -> None:
    where = {"MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1:8081"} if expected else {}
    assert slices_environment(kind, tpus, ranks, index, "10.0.0.1") == {**where, **expected}
    assert port_environment(kind, tpus, ranks, 3) == ({"MEGASCALE_PORT": "8084"} if expected else {})


def test_an_address_of_numbers_and_colons_stands_in_brackets() -> None:
    assert slices_environment(V4, 4.0, 4, 0, "fd00::1")["MEGASCALE_COORDINATOR_ADDRESS"] == "[fd00::1]:8081"


@pytest.mark.parametrize(
    ("resources", "told", "variables", "pod"),
    [
        ({"TPU": 4.0}, ("", 0), {}, ("", 0)),
        ({"TPU": 4.0}, ("", 0), {"TPU_NAME": "pod-a"}, ("pod-a", 0)),
        ({"TPU": 4.0}, ("", 0), {"TPU_NAME": "pod-a", "TPU_WORKER_ID": "3"}, ("pod-a", 3)),
        ({"TPU": 4.0}, ("", 0), {"TPU_NAME": "pod-a", "TPU_WORKER_ID": "first"}, ("pod-a", 0)),
        # What the pool says comes first, and who has no TPUs is in no slice.
        ({"TPU": 4.0}, ("pod-b", 1), {"TPU_NAME": "pod-a", "TPU_WORKER_ID": "3"}, ("pod-b", 1)),
        ({"CPU": 1.0}, ("pod-b", 1), {"TPU_NAME": "pod-a"}, ("", 0)),
    ],
)
def test_a_runner_says_which_slice_it_is_in(
    resources: dict[str, float], told: tuple[str, int], variables: dict[str, str], pod: tuple[str, int]
) -> None:
    assert pod_said(resources, told, variables) == pod


def test_a_rank_is_told_of_both_and_its_user_may_say_otherwise_but_for_the_slices() -> None:
    spec = RunnerSpec(
        url="",
        namespace="",
        run="r",
        attempt=1,
        pool="ray",
        node="b",
        source="b",
        secret=b"",
        base_dir="/base",
        slots=2,
        env={"TPU_VISIBLE_CHIPS": "0,1,2,3"},
    )
    told = Assignment(
        run="r",
        epoch=1,
        n=1,
        hash="",
        attempt=1,
        want="train",
        num_workers=8,
        resources={"TPU": 2.0},
        places=tuple(PlaceWanted(node=node, slots=2, source=node) for node in "abcd"),
        layout=tuple(RankLaid(rank=k, life=1, place=k // 2, local_rank=k % 2, node_rank=k // 2) for k in range(8)),
        rendezvous=Rendezvous(addr="10.0.0.9", port=1),
        slice=V4,
    )
    env = {"MEGASCALE_PORT": "9000", "MEGASCALE_NUM_SLICES": "7", "TPU_HOST_BOUNDS": "2,1,1"}
    found = start_of(spec, told, Work(entrypoint="job:train", env=env), told.layout[3]).env
    assert {name: value for name, value in found.items() if name.startswith(("TPU", "MEGASCALE"))} == {
        "TPU_VISIBLE_CHIPS": "2,3",
        "TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1",
        "TPU_HOST_BOUNDS": "2,1,1",
        "MEGASCALE_PORT": "9000",
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.9:8081",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "0",
    }


# --- what the core makes of slices


def test_the_hosts_of_a_slice_stand_in_their_order() -> None:
    pods = [("pod-b", 1), ("pod-a", 10), ("pod-b", 0), ("pod-a", 9)]
    places = [
        Place(node=f"n{k}", slots=1, source=f"n{k}", ready=Ready(addr="", port=1, offset_s=0.0, pod=pod, pod_host=host))
        for k, (pod, host) in enumerate(pods)
    ]
    assert [places[one.place].node for one in lay_out(places, 4)] == ["n3", "n1", "n2", "n0"]


def test_what_a_runner_says_of_its_slice_is_kept() -> None:
    run = Run(1).places()
    said = run.ready("local")
    run.says(replace(said, pod="pod-a", pod_host=2))
    ready = run.group.places[0].ready
    assert ready is not None
    assert (ready.pod, ready.pod_host) == ("pod-a", 2)


SLICES = ScalingConfig(num_workers=(2, 4), use_tpu=True, topology="2x2x2", accelerator_type="v4")


def test_the_pool_is_told_of_the_kind_of_slices_before_there_is_a_group() -> None:
    run = Run((2, 4))
    state = replace(run.state, job=replace(run.state.job, scaling=SLICES), group=None)
    asked = wish(state, run.head)
    assert (asked.slice, asked.accelerator_type, asked.room_for) == (V4, "v4", 4)
    demand = demand_of(asked)
    assert (demand.slice, demand.resources, demand.start_within_s) == (V4, {"CPU": 1.0, "TPU": 4.0}, 60.0)


def test_with_a_host_of_a_slice_all_replica_groups_begin_again() -> None:
    """Another host would be none of the slice; a rank that fails on hosts that stand is replaced by itself."""
    run = Run(4, nodes=("a", "b"), failure=FailureConfig(max_failures=3), replica_size=2).running()
    in_slices = replace(SLICES, num_workers=4, replica_group_size=2)
    lost = run.says(run.runner_lost("b"))
    assert lost.the(FailureDecided).decision == "replace"
    run = Run(4, nodes=("a", "b"), failure=FailureConfig(max_failures=3), replica_size=2).running()
    state = replace(run.state, job=replace(run.state.job, scaling=in_slices))
    places = tuple(replace(place, lost=place.node == "b") for place in run.group.places)
    failure = replace(lost.the(FailureDecided).failure, attempt=1)
    state = replace(state, group=replace(run.group, places=places))
    assert failing(state, (failure,)) == ()
    assert failing(replace(state, group=run.group), (replace(failure, rank=3, kind="user"),)) == (1,)
