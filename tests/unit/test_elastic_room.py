"""How many ranks of an elastic run fit; what of its size may not be; how it is told, and where its time goes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.controller.elastic import can_do_without
from runfold.controller.policies import DEFAULT
from runfold.events.base import Moment
from runfold.events.config import ScalingConfig, Timeouts
from runfold.events.edges import IllegalEdge
from runfold.events.elastic import Elastic, Room
from runfold.events.evolve import evolve
from runfold.events.state import RunState
from runfold.events.transitions import NodeExcluded, ResizeDropped, ResizePlanned, RunAccepted
from runfold.replay.goodput import goodput
from runfold.replay.vacancy import Vacancy
from runfold.replay.words import input_words
from support.elastic import changed_again, commits, elastic, planned
from support.histories import history
from support.runs import Run

NODES = ("node-a", "node-b")


# --- how many fit


def sized(scaling: ScalingConfig, room: Room, slots: dict[str, int] | None = None) -> str:
    """What the policy says of a run that waits."""
    run = Run((1, 4), timeouts=Timeouts())
    job = replace(run.state.job, scaling=scaling)
    state: RunState = replace(run.state, job=job, elastic=Elastic(room=room), capacity=slots)
    said = DEFAULT.scaling.idle(state)
    return said.reason


CAUSE_ROOM = Room(cause=Run(1).state.phase.cause)


@pytest.mark.parametrize(
    ("strategy", "room", "fits", "size"),
    [
        ("PACK", {"a": 2, "b": 1}, None, 3),
        ("SPREAD", {"a": 2, "b": 1}, None, 3),
        ("STRICT_PACK", {"a": 2, "b": 1}, None, 2),
        ("STRICT_PACK", {}, 1, 0),
        ("STRICT_SPREAD", {"a": 2, "b": 1, "c": 0}, None, 2),
        ("PACK", {"a": 2, "b": 1}, 1, 1),
        ("PACK", None, 2, 2),
    ],
)
def test_what_fits_is_what_the_strategy_allows(
    strategy: str, room: dict[str, int] | None, fits: int | None, size: int
) -> None:
    scaling = ScalingConfig(num_workers=(1, 8), placement_strategy=strategy)  # type: ignore[arg-type]  # by table
    said = sized(scaling, replace(CAUSE_ROOM, room=room, fits=fits))
    assert said.startswith(f"{size} rank" if size else "room for 0 ranks")


def test_a_pool_that_counts_slots_alone_is_understood_exactly() -> None:
    scaling = ScalingConfig(num_workers=(1, 8), resources_per_worker={"CPU": 0.5})
    assert sized(scaling, CAUSE_ROOM, {"a": 2, "b": 1}).startswith("6 ranks")


TPU = ScalingConfig(num_workers=(4, 16), use_tpu=True, topology="4x4", accelerator_type="v4")


@pytest.mark.parametrize(
    ("fits", "slices", "said"),
    [
        (3, None, "room for 0 ranks"),
        (4, None, "4 ranks"),
        (11, None, "8 ranks"),
        (11, 1, "4 ranks"),
        (16, 0, "room for 0 ranks"),
        (99, 9, "16 ranks"),
    ],
)
def test_only_whole_slices_count(fits: int, slices: int | None, said: str) -> None:
    assert sized(TPU, replace(CAUSE_ROOM, fits=fits, slices=slices)).startswith(said)


@pytest.mark.parametrize(
    ("whole", "node", "can"),
    [
        # Two slices of two hosts, one rank on each: the other slice does for two ranks.
        ({"a0": 1, "a1": 1, "b0": 1, "b1": 1}, "a0", True),
        # The others of the slice that is stayed off are of no use: nothing whole would be left.
        ({"a0": 1, "a1": 0, "b0": 1, "b1": 1}, "b0", False),
        ({"a0": 1, "a1": 1}, "a0", False),
    ],
)
def test_a_host_is_done_without_if_whole_slices_are_left(whole: dict[str, int], node: str, can: bool) -> None:
    run = Run(2)
    scaling = ScalingConfig(num_workers=2, use_tpu=True, topology="2x2x2", accelerator_type="v4")
    job = replace(run.state.job, scaling=scaling)
    room = replace(CAUSE_ROOM, whole=whole)
    excluded = ("a0",) if whole["a1"] == 0 else ()
    state = replace(run.state, job=job, elastic=Elastic(room=room), excluded=excluded)
    assert can_do_without(state, node) is can


# --- and as the log is read afterwards


def accepted(scaling: ScalingConfig) -> RunAccepted:
    state = elastic(nodes=NODES).state
    job = replace(state.job, scaling=scaling)
    return RunAccepted(cause=state.phase.cause, reason="valid", job=job, digest="", jobs_sequence=1)


@pytest.mark.parametrize(
    ("scaling", "rooms", "lacks"),
    [
        (ScalingConfig(num_workers=(3, 4), placement_strategy="STRICT_SPREAD"), {"a": 2, "b": 2, "c": 2}, True),
        (ScalingConfig(num_workers=(2, 4), placement_strategy="STRICT_SPREAD"), {"a": 2, "b": 2, "c": 2}, False),
        (ScalingConfig(num_workers=(3, 4), placement_strategy="STRICT_PACK"), {"a": 4, "b": 2, "c": 2}, True),
        (ScalingConfig(num_workers=(3, 4)), {"a": 2, "b": 2, "c": 2}, False),
        (ScalingConfig(num_workers=3, placement_strategy="STRICT_SPREAD"), {"a": 2, "b": 2, "c": 2}, False),
    ],
)
def test_room_is_lacking_by_the_same_count_as_the_run_went_by(
    scaling: ScalingConfig, rooms: dict[str, int], *, lacks: bool
) -> None:
    run, vacancy = elastic(nodes=NODES), Vacancy()
    vacancy.decide(accepted(scaling))
    vacancy.hear(replace(run.room(6), slots=rooms, room=rooms))
    vacancy.decide(NodeExcluded(cause=run.state.phase.cause, reason="it fails", node="a", failures=1))
    assert vacancy.lacks() is lacks


def test_room_of_a_pool_that_counts_slots_alone_is_counted_by_the_cpus_of_a_rank() -> None:
    run, vacancy = elastic(nodes=NODES), Vacancy()
    assert not vacancy.lacks()
    vacancy.decide(accepted(ScalingConfig(num_workers=(3, 4), resources_per_worker={"CPU": 2.0})))
    assert not vacancy.lacks()
    for slots, lacks in (({"b": 3, "c": 2}, True), ({"b": 4, "c": 3}, False)):
        vacancy.hear(replace(run.room(), slots=slots, whole=None, room=None))
        assert vacancy.lacks() is lacks


# --- what may not be


def test_a_resize_is_planned_of_a_running_group_once_and_only_what_is_planned_is_dropped() -> None:
    run = planned()
    plan, at = run.the(ResizePlanned), Moment(n=run.state.n + 1, t=run.t)
    with pytest.raises(IllegalEdge, match="nor twice"):
        evolve(run.state, plan, at)
    with pytest.raises(IllegalEdge, match="while scheduling"):
        evolve(elastic().state, plan, at)
    with pytest.raises(IllegalEdge, match="no resize is planned"):
        evolve(elastic().running().state, ResizeDropped(num_workers=2, cause=plan.cause, reason="x"), at)


# --- where the time goes, and how it is told


def test_the_time_of_a_resize_and_of_waiting_for_room_has_its_use() -> None:
    run = commits(planned(), 1)
    run.waits(5.0).says(run.released()).running()
    run.says(run.runner_lost("local"), run.room(0))
    run.says(run.released()).says(run.room(0)).waits(30.0)
    changed_again(run, 2).running().finishing()
    run.says(run.released())
    use = goodput(history(run.bytes))
    assert use.uses_s["resize"] == pytest.approx(5.5, abs=0.5)
    assert use.uses_s["waiting_for_capacity"] == pytest.approx(30.0, abs=0.5)
    assert sum(use.uses_s.values()) == pytest.approx(use.clock_s)


def test_what_a_pool_has_room_for_is_told_in_words() -> None:
    run = elastic(nodes=NODES)
    assert input_words(run.room(3, node_a=2, node_b=1))[1] == "room for 3 ranks of the run: node-a 2, node-b 1"
    assert input_words(run.room(1, slices=1))[1] == "room for 1 rank of the run; 1 whole slice"
    assert input_words(replace(run.room(0), room={}))[1] == "room for 0 ranks of the run: nowhere"
    assert input_words(replace(run.room(slices=2), room=None)) == ("slots now: none", "2 whole slices")
