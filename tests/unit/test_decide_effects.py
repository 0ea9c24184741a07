"""Failures that are only effects wait for their cause: how long, for whom, and what is said meanwhile."""

import pytest
from msgspec.structs import replace

from runfold.controller.effects import CAUSE_AWAITED_MAX_S
from runfold.controller.status import waiting_for
from runfold.controller.timeouts import timeouts
from runfold.controller.timers import running_timers
from runfold.events.config import FailureConfig
from runfold.events.transitions import FailureDecided
from support.runs import Run

TWO_NODES = ("node-a", "node-b")


def test_given_broken_connections_when_the_loss_behind_them_is_seen_a_moment_later_then_it_is_the_first_cause() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    assert run.none(FailureDecided)
    run.says(run.runner_lost("node-b"))
    failure = run.the(FailureDecided).failure
    assert (failure.kind, failure.node) == ("runner", "node-b")
    assert run.state.budgets["worker"].spent == 1


@pytest.mark.parametrize(("code", "signal", "kind"), [(None, 9, "signal"), (3, None, "exit")])
def test_given_broken_connections_when_a_rank_turns_out_to_have_ended_then_that_is_the_first_cause(
    code: int | None, signal: int | None, kind: str
) -> None:
    run = Run(3, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    assert run.none(FailureDecided)
    run.says(run.exited(1, code, signal=signal))
    failure = run.the(FailureDecided).failure
    assert (failure.kind, failure.rank) == (kind, 1)


def test_given_broken_connections_when_nobody_says_what_broke_them_then_they_are_decided_upon_in_the_end() -> None:
    run = Run(3, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    due_t = dict(running_timers(run.state))["cause"]
    assert due_t == pytest.approx(run.state.t + CAUSE_AWAITED_MAX_S)
    assert timeouts(run.state)["cause_awaited_max_s"].due_t == due_t
    run.says(run.failed(2, "connection reset", "peer"), after_s=CAUSE_AWAITED_MAX_S - 1.0)
    assert run.none(FailureDecided)
    assert dict(running_timers(run.state))["cause"] == due_t
    run.waits(1.0)
    assert (run.the(FailureDecided).failure.kind, run.the(FailureDecided).failure.rank) == ("peer", 0)
    assert "cause" not in dict(running_timers(run.state))


def test_given_broken_connections_when_every_rank_has_told_of_them_then_nobody_is_waited_for() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "they called different collectives", "peer"))
    assert run.none(FailureDecided)
    run.says(run.failed(1, "they called different collectives", "peer"))
    assert run.the(FailureDecided).failure.kind == "peer"


@pytest.mark.parametrize("kind", ["CollectiveTimeoutError", "CollectiveMismatchError"])
def test_given_a_collective_that_says_what_was_wrong_then_nobody_is_waited_for(kind: str) -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    told = run.failed(0, "rank 1 did not arrive", "peer")
    run.says(replace(told, error=replace(told.error, type=kind)))
    assert run.the(FailureDecided).failure.rank == 0


def test_given_a_wait_for_a_cause_then_it_is_said_what_is_waited_for() -> None:
    run = Run(3).running()
    run.says(run.failed(2, "connection reset", "peer"), run.failed(0, "connection reset", "peer"))
    assert waiting_for(run.state) == "the cause of the failure of ranks 0, 2: who knows it has 5 s to tell"
    run.waits(CAUSE_AWAITED_MAX_S)
    assert "the cause of" not in (waiting_for(run.state) or "")


def test_given_an_end_that_nobody_saw_when_its_runner_is_lost_then_both_are_one_failure() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=3)).running()
    run.says(run.exited(1))
    assert run.none(FailureDecided)
    run.says(run.runner_lost("node-b"))
    assert run.the(FailureDecided).others == 1
    assert run.state.budgets["worker"].spent == 1
    assert run.state.attempt == 2
    run.waits(1.0)
    assert run.none(FailureDecided)


def test_given_broken_connections_when_a_notice_comes_later_then_it_did_not_break_them() -> None:
    run = Run(3, nodes=("node-a", "node-b", "node-c"), failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    run.says(run.noticed("node-b", within_s=1.0), after_s=2.0)
    run.waits(CAUSE_AWAITED_MAX_S)
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.budget) == ("peer", "worker")


# --- replica groups


def test_given_broken_connections_in_a_replica_group_then_its_own_ranks_alone_are_waited_for() -> None:
    run = Run(4, replica_size=2, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    assert run.none(FailureDecided)
    run.says(run.failed(1, "connection reset", "peer"))
    assert run.the(FailureDecided).replicas == (0,)


def test_given_broken_connections_in_a_replica_group_when_another_one_fails_then_that_is_replaced_at_once() -> None:
    run = Run(6, replica_size=2, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    run.says(run.exited(3, 3), after_s=2.0)
    decided = run.the(FailureDecided)
    assert (decided.replicas, decided.failure.rank, decided.others) == ((1,), 3, 0)
    run.says(run.exited(1, 3), after_s=1.0)
    decided = run.the(FailureDecided)
    assert (decided.replicas, decided.failure.rank, decided.others) == ((0,), 1, 1)
    assert run.state.attempt == 1
