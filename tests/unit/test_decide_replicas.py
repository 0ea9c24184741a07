"""Replica groups: those that fail are replaced, all at the same time, while the others train on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.events.assignment import Assignment, ReplicaGiven
from runfold.events.conclusions import SilenceConcluded
from runfold.events.config import BackendConfig, FailureConfig, Timeouts
from runfold.events.facts import AnyFact
from runfold.events.transitions import (
    CheckpointCommitted,
    FailureDecided,
    FirstCauseRevised,
    GroupLaidOut,
    ReplicaGroupReplaced,
    TaskOrdered,
)
from support.runs import AT, Run

NODES = ("node-a", "node-b")
PATIENT = Timeouts(import_timeout_s=20.0, coalesce_s=0.0)


def at_work(workers: int = 6, size: int = 2, *, failure: FailureConfig | None = None, nodes: int = 1) -> Run:
    """So many ranks in groups of two, all in user code."""
    config = failure or FailureConfig(max_failures=3)
    names = NODES[:nodes] if nodes > 1 else ("local",)
    return Run(workers, nodes=names, failure=config, timeouts=PATIENT, replica_size=size).running()


def wanted(run: Run) -> Assignment:
    return assignment(run.state, run.head)


def replaced(run: Run) -> list[ReplicaGroupReplaced]:
    return [said for said in run.said if isinstance(said, ReplicaGroupReplaced)]


def lives(run: Run) -> list[int]:
    return [rank.life for rank in run.group.ranks]


# --- who is replaced


def test_given_a_rank_that_raises_then_its_group_is_replaced_and_the_others_train_on() -> None:
    run = at_work().says()
    run.says(run.failed(3))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.replicas, decided.budget, decided.spent) == ("replace", (1,), "worker", 1)
    assert decided.reason == (
        "rank 3 failed first: RuntimeError: boom; worker failure 1 of 3; "
        "replacing replica group 1 while the others train on"
    )
    new = run.the(ReplicaGroupReplaced)
    assert [(laid.rank, laid.life) for laid in new.layout] == [(2, 2), (3, 2)]
    assert new.reason == ("replica group 1 (2 ranks on local) begins its life 2 from nothing, while 2 others train on")
    assert (run.name, run.path, run.state.attempt) == ("running", [], 1)
    assert lives(run) == [1, 1, 2, 2, 1, 1]
    assert [rank.phase for rank in run.group.ranks] == ["running", "running", "starting", "starting"] + ["running"] * 2


def test_given_a_replaced_group_when_its_ranks_start_and_all_return_then_the_run_finishes() -> None:
    run = at_work().says()
    run.says(run.failed(3)).starts()
    assert status(run.state, run.head, AT).ranks[3].phase == "running"
    assert run.finishing().path == ["running>shutting_down"]


def test_given_several_groups_that_fail_in_one_entry_then_one_unit_is_spent_and_each_is_replaced() -> None:
    run = at_work().says()
    run.says(run.failed(0), run.failed(5))
    decided = run.the(FailureDecided)
    assert (decided.replicas, decided.spent, decided.others) == ((0, 2), 1, 1)
    assert "replacing replica groups 0, 2 " in decided.reason
    assert [(one.group, one.life) for one in replaced(run)] == [(0, 2), (2, 2)]
    assert lives(run) == [2, 2, 1, 1, 2, 2]


def test_given_groups_that_fail_one_after_another_then_each_replacement_spends_a_unit() -> None:
    run = at_work(failure=FailureConfig(max_failures=2))
    run.says(run.failed(0)).starts()
    run.says(run.failed(2)).starts()
    assert (run.state.budgets["worker"].spent, lives(run)) == (2, [2, 2, 2, 2, 1, 1])
    run.says(run.failed(4))
    assert run.path == ["running>shutting_down"]
    assert "failure.max_failures allows 2" in run.the(FailureDecided).reason


def test_given_all_groups_that_fail_then_the_whole_group_begins_again() -> None:
    run = at_work(4)
    run.says(run.failed(0), run.failed(2))
    assert run.the(FailureDecided).decision == "retry"
    assert run.path == ["running>restarting", "restarting>scheduling"]
    run.the(GroupLaidOut)
    assert (run.state.attempt, lives(run)) == (2, [1, 1, 1, 1])


def test_given_a_group_that_fails_while_the_other_is_still_starting_then_nobody_is_left_to_train_on() -> None:
    run = at_work(4)
    run.says(run.failed(0))
    assert lives(run) == [2, 2, 1, 1]
    run.says(run.failed(2))
    assert run.path == ["running>restarting", "restarting>scheduling"]


def test_given_a_group_that_has_returned_when_another_fails_then_that_one_is_replaced() -> None:
    run = at_work(4)
    run.says(run.returned(0), run.returned(1))
    run.says(run.failed(2))
    assert run.the(FailureDecided).decision == "replace"
    run.starts()
    run.says(run.returned(2), run.returned(3))
    assert run.path == ["running>shutting_down"]


def test_given_ranks_without_groups_then_they_stand_and_fall_together() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(1))
    assert run.path == ["running>restarting", "restarting>scheduling"]


def test_given_groups_that_are_still_starting_when_one_fails_then_the_attempt_is_over() -> None:
    run = Run(4, replica_size=2, failure=FailureConfig(max_failures=1)).lays_out()
    run.says(run.failed(3))
    assert run.path[0] == "scheduling>rescheduling"


def test_given_an_error_that_is_never_retried_then_no_group_is_replaced() -> None:
    run = at_work()
    run.says(run.failed(3)).says(run.failed(2, "no such module", "load"))
    assert run.path == ["running>shutting_down"]


# --- places that are lost, or given up


def test_given_a_runner_that_is_lost_then_its_place_alone_is_replaced_and_the_others_train_on() -> None:
    run = at_work(4, nodes=2)
    run.says(run.runner_lost("node-b"))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.replicas, decided.vacated, decided.budget) == ("replace", (1,), (1,), "worker")
    assert (run.path, replaced(run)) == ([], [])
    assert [place.left for place in wanted(run).places] == [None, run.head.n]
    assert [laid.rank for laid in wanted(run).layout] == [0, 1]
    run.join("node-c").says(run.place_again(1, "node-c", 2))
    assert replaced(run) == [], "its runner is not ready yet"
    assert [(place.node, place.left) for place in wanted(run).places] == [("node-a", None), ("node-c", None)]
    run.says(run.ready("node-c"))
    new = run.the(ReplicaGroupReplaced)
    assert [(laid.rank, laid.life, laid.place) for laid in new.layout] == [(2, 2, 1), (3, 2, 1)]
    assert [rank.node for rank in run.group.ranks] == ["node-a", "node-a", "node-c", "node-c"]
    run.starts().finishing()
    assert run.path == ["running>shutting_down"]


def test_given_a_runner_that_is_ready_before_its_place_is_told_then_nothing_is_lost() -> None:
    run = at_work(4, nodes=2)
    run.says(run.runner_lost("node-b")).join("node-c")
    run.says(run.ready("node-c")).says(run.place_again(1, "node-c", 2))
    assert run.the(ReplicaGroupReplaced).group == 1


def test_given_a_place_that_was_given_up_when_its_runner_goes_then_that_is_no_failure() -> None:
    run = at_work(4, nodes=2)
    run.says(run.runner_lost("node-b")).says(run.runner_lost("node-b"))
    assert run.said == ()
    run.says(SilenceConcluded(source="node-b", silence_s=60.0, lost=True, reason="silent"))
    assert run.said == ()
    assert run.state.budgets["worker"].spent == 1


def test_given_survivors_that_return_while_a_place_is_waited_for_then_the_run_waits_for_the_rest() -> None:
    run = at_work(4, nodes=2)
    run.says(run.runner_lost("node-b")).says(run.returned(0), run.returned(1))
    assert run.name == "running"


def test_given_a_place_whose_ranks_had_all_returned_then_it_is_not_used_again() -> None:
    run = Run(3, nodes=("node-a", "node-b", "node-c"), failure=FailureConfig(max_failures=3), replica_size=1).running()
    run.says(run.returned(2)).says(run.runner_lost("node-c"))
    assert run.said == ()
    run.says(run.runner_lost("node-b"))
    assert (run.the(FailureDecided).replicas, run.the(FailureDecided).vacated) == ((1,), (1,))


def test_given_another_place_that_is_lost_before_it_is_used_then_the_next_one_is_wanted() -> None:
    run = at_work(4, nodes=2)
    run.says(run.runner_lost("node-b")).join("node-c").says(run.place_again(1, "node-c", 2))
    run.says(run.runner_lost("node-c"))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.replicas, decided.vacated) == ("replace", (1,), (1,))
    assert wanted(run).places[1].left == run.head.n


@pytest.mark.parametrize(("number", "ignored"), [(0, True), (7, True), (-1, True)])
def test_given_a_place_that_nobody_wants_another_for_then_none_is_put_there(number: int, ignored: bool) -> None:
    run = at_work(4, nodes=2)
    before = run.group.places
    run.says(run.place_again(number, "node-c", 2))
    assert (run.group.places == before) is ignored


def test_given_the_place_of_the_lighthouse_when_it_is_lost_then_everybody_begins_again() -> None:
    run = Run(2, nodes=NODES, failure=FailureConfig(max_failures=1), backend=BackendConfig(kind="torchft")).places()
    run.says(*(replace(run.ready(node), spare_port=9 + i) for i, node in enumerate(NODES))).starts()
    assert run.group.lighthouse == wanted(run).lighthouse == "http://127.0.0.1:9"
    run.says(run.runner_lost("node-a"))
    assert run.path == ["running>restarting"]


def test_given_a_lighthouse_of_somebody_elses_then_the_place_of_rank_0_is_one_like_others() -> None:
    backend = BackendConfig(kind="torchft", options={"lighthouse": "http://lights:1"})
    run = Run(2, nodes=NODES, failure=FailureConfig(max_failures=1), backend=backend).running()
    assert wanted(run).lighthouse == "http://lights:1"
    run.says(run.runner_lost("node-a"))
    assert run.the(FailureDecided).vacated == (0,)


# --- what is told late


def test_given_what_the_last_life_still_says_then_it_changes_nothing() -> None:
    run = at_work()
    late: list[AnyFact] = [run.reported(2, 7), run.failed(2), run.exited(3, signal=15, asked=True)]
    run.numbers["local"] -= len(late)
    run.says(run.failed(3))
    run.says(*(run.number(fact) for fact in late))
    assert [type(said) for said in run.said] == [FirstCauseRevised], "it may still be what failed first"
    assert (run.state.budgets["worker"].spent, run.group.ranks[2].index, lives(run)[2]) == (1, -1, 2)
    assert run.state.dropped.stale == len(late)


# --- where it begins


def committed(run: Run, index: int, node: str = "local") -> str:
    run.says(*(run.shard(rank.rank, index) for rank in run.group.ranks))
    name = run.the(TaskOrdered).task.id.removeprefix("seal:")
    run.says(run.sealed(name, node=node)).the(CheckpointCommitted)
    return name


def test_given_a_committed_checkpoint_then_the_new_life_begins_from_it_and_counts_on() -> None:
    run = at_work()
    name = committed(run, 0)
    run.says(*(run.reported(rank, index) for index in (1, 2) for rank in range(6)))
    run.says(run.failed(3))
    new = run.the(ReplicaGroupReplaced)
    assert (new.checkpoint, new.first) == (name, 3)
    assert wanted(run).replicas == (ReplicaGiven(group=1, life=2, checkpoint=name, first=3),)
    assert (wanted(run).want, wanted(run).attempt, wanted(run).replica_group_size) == ("train", 1, 2)
    assert [laid.life for laid in wanted(run).layout] == [1, 1, 2, 2, 1, 1]
    assert [rank.index for rank in run.group.ranks] == [2] * 6


def test_given_survivors_with_files_when_a_group_without_any_is_replaced_then_their_checkpoint_is_kept() -> None:
    run = at_work(4)
    run.says(run.shard(0, 0), run.shard(1, 0))
    run.says(run.failed(3))
    assert run.the(TaskOrdered).task.arguments["ranks"] == "3"


def test_given_a_group_that_had_files_in_when_not_all_of_it_passed_then_that_checkpoint_is_given_up() -> None:
    run = at_work(4)
    run.says(run.shard(0, 0), run.shard(2, 0))
    run.says(run.failed(3))
    assert run.state.checkpoints.gathering == ()
    assert run.state.checkpoints.torn == ("checkpoint_000000_1",)
    assert run.the(TaskOrdered).task.arguments["names"] == ["checkpoint_000000_1"]
    run.says(run.shard(1, 0))
    assert run.state.checkpoints.gathering == (), "it would be committed without what others had in it"
    run.starts().says(run.failed(0)).says(run.failed(2))
    assert run.state.attempt == 2
    assert not run.state.checkpoints.torn


def test_given_a_group_that_had_all_its_files_in_then_the_checkpoint_is_kept() -> None:
    run = at_work(4)
    run.says(run.shard(2, 0), run.shard(3, 0))
    run.says(run.failed(3))
    run.says(run.shard(0, 0), run.shard(1, 0))
    assert run.the(TaskOrdered).task.arguments["ranks"] == "f"


# --- time


def test_given_a_backoff_then_the_group_is_down_until_it_is_over() -> None:
    run = at_work(failure=FailureConfig(max_failures=3, backoff_s=5.0))
    run.says(run.failed(3))
    assert "replacing replica group 1 in 5 s at the earliest" in run.the(FailureDecided).reason
    assert replaced(run) == []
    assert run.wake_at == pytest.approx(run.t + 5.0)
    assert [laid.rank for laid in wanted(run).layout] == [0, 1, 4, 5]
    assert wanted(run).num_workers == 6
    run.waits(5.0)
    assert [one.group for one in replaced(run)] == [1]


def test_given_a_group_that_is_down_when_another_fails_then_both_come_back_when_they_may() -> None:
    run = at_work(failure=FailureConfig(max_failures=3, backoff_s=5.0))
    run.says(run.failed(3)).says(run.failed(0), after_s=1.0)
    assert run.the(FailureDecided).replicas == (0,)
    run.waits(4.0)
    assert [one.group for one in replaced(run)] == [1]
    run.waits(7.0)
    assert [one.group for one in replaced(run)] == [0]


def test_given_a_replaced_group_that_does_not_start_in_time_then_it_is_replaced_once_more() -> None:
    run = at_work()
    run.says(run.failed(3)).says(run.started(2))
    run.waits(20.0)
    decided = run.the(FailureDecided)
    assert (decided.budget, decided.failure.kind, decided.failure.rank) == ("startup", "start_timeout", 3)
    assert "rank 3 on local did not start again within timeouts.import_timeout_s (20 s)" in decided.reason
    assert run.state.fired == ()
    run.waits(1.0)
    assert [(one.group, one.life) for one in replaced(run)] == [(1, 3)]


def test_given_a_timer_of_a_life_that_is_over_then_nothing_happens() -> None:
    run = at_work()
    run.says(run.failed(3)).starts()
    assert run.wake_at is None


# --- starting again


def test_given_a_group_that_does_not_meet_when_others_report_then_its_failures_to_start_still_stand_in_a_row() -> None:
    run = at_work().says()
    run.says(run.failed(3, kind="rendezvous"))
    run.says(run.reported(0, 0))
    assert run.state.startup_streak == 1
    run.waits(1.0)
    run.says(run.started(2), run.started(3))
    assert lives(run) == [1, 1, 2, 2, 1, 1]
    run.says(run.reported(0, 1))
    assert run.state.startup_streak == 1
    run.says(run.reported(3, 0))
    assert run.state.startup_streak == 0
