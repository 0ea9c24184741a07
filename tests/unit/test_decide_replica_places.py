"""Replica groups and their places: what has returned loses none, and what another place is waited for, and how long."""

from __future__ import annotations

import pytest

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.events.assignment import Assignment
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.state import Preempting
from runfold.events.transitions import CheckpointCommitted, FailureDecided, ReplicaGroupReplaced, TaskOrdered
from support.runs import AT, Run

NODES = ("node-a", "node-b")
PATIENT = Timeouts(import_timeout_s=20.0, coalesce_s=0.0)
LIMIT = "timeouts.start_timeout_s (60 s)"


def at_work(workers: int = 4, *, nodes: tuple[str, ...] = NODES, failure: FailureConfig | None = None) -> Run:
    """So many ranks in groups of two, all in user code."""
    config = failure or FailureConfig(max_failures=3)
    return Run(workers, nodes=nodes, failure=config, timeouts=PATIENT, replica_size=2).running()


def wanted(run: Run) -> Assignment:
    return assignment(run.state, run.head)


def lives(run: Run) -> list[int]:
    return [rank.life for rank in run.group.ranks]


def committed(run: Run, index: int) -> str:
    run.says(*(run.shard(rank.rank, index) for rank in run.group.ranks))
    name = run.the(TaskOrdered).task.id.removeprefix("seal:")
    run.says(run.sealed(name, node="node-a")).the(CheckpointCommitted)
    return name


# --- who has returned


def returned_on_node_a() -> Run:
    """Two groups on two nodes; the ranks of the first have returned."""
    run = at_work()
    run.says(run.returned(0), run.returned(1))
    return run


def test_given_notice_for_a_node_whose_ranks_have_all_returned_then_it_costs_nothing() -> None:
    run = returned_on_node_a()
    run.says(run.noticed("node-a", within_s=3.0))
    assert (run.name, run.said) == ("running", ())
    run.waits(5.0).says(run.runner_lost("node-a"))
    assert (run.name, run.said, lives(run)) == ("running", (), [1, 1, 1, 1])
    run.says(run.returned(2), run.returned(3))
    assert run.path == ["running>shutting_down"]
    assert run.state.budgets["preemption"].spent == 0


def test_given_notice_for_every_node_then_a_group_that_has_returned_is_not_replaced() -> None:
    run = returned_on_node_a()
    run.says(run.noticed(*NODES, within_s=3.0))
    assert isinstance(run.state.phase, Preempting)
    assert run.state.phase.nodes == ("node-b",)
    run.waits(3.0)
    assert (run.the(FailureDecided).replicas, run.the(FailureDecided).vacated) == ((1,), (1,))
    assert "replacing replica group 1, while nobody else trains" in run.the(FailureDecided).reason
    assert [rank.phase for rank in run.group.ranks] == ["returned", "returned", "waiting", "waiting"]
    run.join("node-c").says(run.place_again(1, "node-c", 2), run.ready("node-c"))
    assert run.the(ReplicaGroupReplaced).reason.endswith("begins its life 2 from nothing, while nobody else trains")
    run.starts().says(run.returned(2), run.returned(3))
    assert run.path == ["running>shutting_down"]


def test_given_a_notice_when_the_last_rank_there_returns_before_its_time_then_the_run_goes_on() -> None:
    run = at_work()
    run.says(run.noticed("node-b", within_s=60.0))
    run.says(run.returned(2)).says(run.returned(3))
    assert (run.path, run.state.phase.reason) == (
        ["preempting>running"],
        "every rank on node-b is done: nothing is lost there",
    )
    run.waits(60.0)
    assert run.said == ()


def test_given_a_group_on_two_nodes_that_go_when_one_of_its_ranks_has_returned_then_both_its_places_are_left() -> None:
    run = Run(4, nodes=("node-a", "node-b", "node-c"), failure=FailureConfig(max_failures=3), replica_size=2)
    run.says(run.placed(1, 1, 2)).says(*(run.ready(node) for node in run.nodes)).starts()
    run.says(run.returned(0)).says(run.noticed("node-a", "node-b", within_s=3.0)).waits(3.0)
    assert (run.the(FailureDecided).replicas, run.the(FailureDecided).vacated) == ((0,), (0, 1))


def test_given_a_place_that_is_shared_with_a_group_that_has_returned_then_nobody_starts_that_one_again() -> None:
    run = Run(6, nodes=NODES, failure=FailureConfig(max_failures=3), timeouts=PATIENT, replica_size=2)
    run.says(run.placed(4, 2)).says(*(run.ready(node) for node in NODES)).starts()
    run.says(run.returned(0), run.returned(1)).says(run.runner_lost("node-a"))
    assert (run.the(FailureDecided).replicas, run.the(FailureDecided).vacated) == ((1,), (0,))
    run.says(run.runner_lost("node-a")).says(run.returned(4), run.returned(5))
    run.join("node-c").says(run.place_again(0, "node-c", 4), run.ready("node-c"))
    assert [(laid.rank, laid.life) for laid in wanted(run).layout] == [(2, 2), (3, 2), (4, 1), (5, 1)]
    run.starts().says(run.returned(2), run.returned(3))
    assert run.path == ["running>shutting_down"]


def test_given_all_others_returned_at_the_place_that_is_lost_then_its_runner_is_missed_once() -> None:
    run = Run(4, failure=FailureConfig(max_failures=3), timeouts=PATIENT, replica_size=2).running()
    run.says(run.returned(0), run.returned(1)).says(run.runner_lost())
    assert (run.the(FailureDecided).replicas, wanted(run).layout) == ((1,), ())
    run.says(run.runner_lost())
    assert (run.said, run.state.budgets["worker"].spent) == ((), 1)


def test_given_a_group_on_two_nodes_that_go_when_one_goes_early_then_no_place_is_left_under_another_group() -> None:
    run = Run(4, nodes=NODES, failure=FailureConfig(max_failures=3), timeouts=PATIENT, replica_size=2)
    run.says(run.placed(3, 1)).says(*(run.ready(node) for node in NODES)).starts()
    run.says(run.noticed(*NODES, within_s=60.0)).says(run.returned(2)).says(run.exited(3, signal=15))
    assert (run.the(FailureDecided).replicas, run.the(FailureDecided).vacated) == ((1,), (1,))


# --- nodes that are taken back


def preempting() -> Run:
    run = at_work()
    run.says(run.noticed("node-b", within_s=60.0)).says(run.room(node_a=2, node_b=2, node_c=2))
    assert run.name == "preempting"
    return run


def test_given_nodes_that_go_when_the_ranks_have_saved_then_only_the_groups_there_are_replaced() -> None:
    run = preempting()
    name = committed(run, 0)
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.replicas, decided.vacated, decided.budget) == (
        "replace",
        (1,),
        (1,),
        "preemption",
    )
    assert run.path == ["preempting>running"]
    assert (run.state.notice, run.state.away, wanted(run).excluded_nodes) == (None, ("node-b",), ("node-b",))
    run.says(run.runner_lost("node-b")).join("node-c")
    run.says(run.place_again(1, "node-c", 2), run.ready("node-c"))
    assert run.the(ReplicaGroupReplaced).checkpoint == name
    assert (run.state.attempt, lives(run)) == (1, [1, 1, 2, 2])


def test_given_nodes_that_go_when_their_time_is_over_then_only_the_groups_there_are_replaced() -> None:
    run = preempting().waits(60.0)
    assert (run.the(FailureDecided).replicas, run.path) == ((1,), ["preempting>running"])


def test_given_a_node_that_goes_before_its_time_then_its_groups_are_replaced_at_once() -> None:
    run = preempting()
    run.says(run.exited(3, signal=15))
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.replicas, decided.vacated) == ("preempted", (1,), (1,))
    assert run.path == ["preempting>running"]


def test_given_notice_for_every_node_then_the_whole_group_begins_again_elsewhere() -> None:
    run = at_work()
    run.says(run.noticed(*NODES, within_s=5.0)).waits(5.0)
    assert run.path == ["preempting>restarting"]


def test_given_nodes_that_go_when_a_rank_raises_then_its_group_is_replaced_meanwhile() -> None:
    run = at_work(6, nodes=("local",))
    run.says(run.noticed("local", within_s=60.0)).says(run.failed(3))
    assert run.the(FailureDecided).decision == "replace"
    assert run.name == "preempting"


# --- what the others save meanwhile


def test_given_a_group_that_waits_for_a_place_then_what_the_others_save_meanwhile_is_committed() -> None:
    run = at_work()
    run.says(*(run.shard(rank, 0) for rank in range(4)))
    run.says(run.sealed("checkpoint_000000_1", node="node-a"))
    run.says(run.runner_lost("node-b"))
    run.says(run.shard(0, 1)).says(run.shard(1, 1))
    ordered = run.the(TaskOrdered)
    assert (ordered.task.id, ordered.task.arguments["ranks"]) == ("seal:checkpoint_000001_1", "3")
    assert ordered.reason == (
        "every rank at work has passed report 1: 2 with files, 2 without files; checkpoint_000001_1 is to be sealed"
    )
    run.says(run.sealed("checkpoint_000001_1", node="node-a")).the(CheckpointCommitted)
    run.join("node-c").says(run.place_again(1, "node-c", 2), run.ready("node-c"))
    new = run.the(ReplicaGroupReplaced)
    assert (new.checkpoint, new.first) == ("checkpoint_000001_1", 2)
    run.says(run.shard(0, 2), run.shard(1, 2))
    assert run.none(TaskOrdered), "who has begun again is waited for"


# --- room for another place


@pytest.mark.parametrize(
    ("room", "leaves"),
    [
        ({"node_a": 4, "node_b": 2}, False),  # two slots more, where the run has a place already
        ({"node_a": 2, "node_b": 2, "node_c": 1, "node_d": 1}, False),  # a place is whole on one node
        ({"node_a": 2, "node_b": 4}, False),
        ({"node_a": 2, "node_b": 2, "node_c": 2}, True),
    ],
)
def test_given_a_notice_then_the_group_leaves_early_only_for_a_place_that_it_can_have(
    room: dict[str, int], leaves: bool
) -> None:
    run = at_work().says()
    run.says(run.noticed("node-b", within_s=60.0)).says(run.room(**room))
    committed(run, 0)
    assert (run.path == ["preempting>running"]) is leaves
    assert run.waits(60.0).name == "running"


def test_given_a_pool_that_does_not_say_what_its_nodes_hold_then_the_group_stays_until_its_deadline() -> None:
    run = at_work().says()
    run.says(run.noticed("node-b", within_s=60.0)).says(run.room(fits=4))
    committed(run, 0)
    assert run.name == "preempting"


def waiting() -> Run:
    """Two groups; the place of the second is lost, and there is no other."""
    run = at_work().says()
    assert wanted(run).room_for == 0
    run.says(run.runner_lost("node-b"))
    assert wanted(run).room_for == 4, "what there is room for is of interest now"
    return run.says(run.queued(free=0, needed=2), run.room(node_a=2))


def test_given_a_group_without_a_place_then_it_is_shown_what_it_waits_for_and_until_when() -> None:
    run = waiting()
    shown = status(run.state, run.head, AT)
    assert shown.waiting == (
        "another place for replica group 1, on a node where the run has none: 2 slots needed, 0 free"
    )
    assert shown.timeouts["start_timeout_s"].due_t == run.wake_at
    run.join("node-c").says(run.place_again(1, "node-c", 2))
    assert status(run.state, run.head, AT).waiting == "the runner on node-c, for replica group 1"
    run.says(run.ready("node-c"))
    assert status(run.state, run.head, AT).waiting == "the start of rank 2, rank 3"
    assert status(run.starts().state, run.head, AT).waiting is None


def test_given_a_group_that_begins_again_then_only_reports_of_its_present_life_are_shown() -> None:
    run = at_work()
    run.says(*(run.reported(rank, 5) for rank in range(4))).says(run.failed(3))
    assert [(one.index, one.step) for one in status(run.state, run.head, AT).ranks] == [(5, 50)] * 2 + [(-1, None)] * 2
    run.starts().says(run.reported(2, 6))
    assert [one.index for one in status(run.state, run.head, AT).ranks] == [5, 5, 6, -1]


def test_given_a_group_that_is_down_for_a_while_then_that_is_shown() -> None:
    run = at_work(6, nodes=("local",), failure=FailureConfig(max_failures=3, backoff_s=5.0))
    run.says(run.failed(3))
    until = f"{run.t + 5.0:.1f}"
    assert status(run.state, run.head, AT).waiting == (
        f"the back-off of replica group 1, until {until} s on the run's clock"
    )


def test_given_a_group_without_a_place_for_too_long_when_the_whole_run_would_fit_then_all_begin_again() -> None:
    run = waiting().waits(60.0)
    assert (run.said, run.name) == ((), "running"), "nor would the whole run fit"
    spent = run.state.budgets
    run.says(run.room(node_a=4))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.budget, decided.failure.error.message) == (
        "retry",
        None,
        f"no other place for replica group 1 within {LIMIT}, and the pool has room for the whole run",
    )
    assert (run.path, run.state.budgets) == (["running>restarting"], spent)
    run.nodes = ("node-a",)
    run.says(run.released()).lays_out().starts().finishing()
    assert run.path == ["running>shutting_down"]


def test_given_room_for_the_whole_run_when_the_time_for_another_place_is_over_then_all_begin_again_at_once() -> None:
    run = waiting().says()
    run.says(run.room(node_a=4))
    assert run.name == "running", "it may still be found"
    assert run.waits(60.0).path == ["running>restarting"]


def test_given_a_place_to_be_had_when_its_time_is_over_then_it_is_waited_for() -> None:
    run = waiting().says()
    run.says(run.room(node_a=4, node_c=2)).waits(60.0)
    assert run.said == ()
    run.join("node-c").says(run.place_again(1, "node-c", 2), run.ready("node-c"))
    assert run.the(ReplicaGroupReplaced).group == 1


def test_given_a_place_that_was_found_when_it_is_lost_too_then_the_time_begins_anew() -> None:
    run = waiting().waits(60.0)
    run.join("node-c").says(run.place_again(1, "node-c", 2), run.ready("node-c")).starts()
    run.says(run.runner_lost("node-c")).says(run.room(node_a=4))
    assert run.name == "running"
    assert run.waits(60.0).path == ["running>restarting"]
