"""A rank, a runner or a node fails: which failure was first, what it costs, and where the group starts again."""

import pytest

from runfold.controller.assignment import assignment
from runfold.controller.effects import CAUSE_AWAITED_MAX_S
from runfold.controller.status import status
from runfold.events.conclusions import SilenceConcluded
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.limits import ERRORS_INLINE_MAX_COUNT, LATE_EVIDENCE_MAX, LATE_EVIDENCE_S
from runfold.events.state import Errored, Restarting
from runfold.events.transitions import (
    AttemptStarted,
    FailureDecided,
    FirstCauseRevised,
    GroupLaidOut,
    StateChanged,
)
from support.runs import AT, Run

TWO_NODES = ("node-a", "node-b")


def test_given_a_running_group_when_a_rank_raises_then_one_entry_restarts_it_on_the_same_places() -> None:
    run = Run(2, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(1))
    assert [type(said).__name__ for said in run.said] == [
        "FailureDecided",
        "StateChanged",
        "AttemptStarted",
        "StateChanged",
        "GroupLaidOut",
    ]
    assert run.path == ["running>restarting", "restarting>scheduling"]
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.budget, decided.spent, decided.limit, decided.others) == (
        "retry",
        "worker",
        1,
        3,
        0,
    )
    assert decided.reason == (
        "rank 1 failed first: RuntimeError: boom; worker failure 1 of 3; restarting on the same places"
    )
    assert decided.cause.input == 0
    assert run.the(AttemptStarted).kept
    assert run.the(GroupLaidOut).port == 4712, "the port held for the next attempt"
    shown = assignment(run.state, run.head)
    assert (shown.want, shown.attempt) == ("train", 2)
    assert run.state.budgets["worker"].spent == 1


def test_given_a_restart_when_ranks_start_then_it_runs_and_a_second_failure_is_a_second_unit() -> None:
    run = Run(2, failure=FailureConfig(max_failures=2)).running()
    run.says(run.failed(1)).starts()
    assert run.name == "running"
    assert status(run.state, run.head, AT).error is None
    run.says(run.failed(0))
    assert "worker failure 2 of 2" in run.the(FailureDecided).reason
    run.starts().says(run.failed(0))
    assert run.the(FailureDecided).decision == "raise"
    assert "worker failure 3, and failure.max_failures allows 2; the run ends" in run.the(FailureDecided).reason
    assert run.state.budgets["worker"].spent == 2


def test_given_a_run_that_may_spend_nothing_then_the_reason_names_no_limit_of_its_user() -> None:
    nothing = FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0, max_hangs=0)
    run = Run(1, failure=nothing).running()
    run.says(run.failed(0))
    reason = run.the(FailureDecided).reason
    assert "nothing is tried again" in reason
    assert "local mode" in reason
    assert "max_failures" not in reason


def test_given_no_budget_when_a_rank_raises_then_the_run_shuts_down_and_ends_with_its_error() -> None:
    run = Run(2).running()
    run.says(run.failed(0))
    assert run.path == ["running>shutting_down"]
    assert "no worker failure is allowed (failure.max_failures = 0)" in run.the(FailureDecided).reason
    assert assignment(run.state, run.head).want == "stop"
    shown = status(run.state, run.head, AT)
    assert shown.error is not None
    assert (shown.error.rank, shown.error.type, shown.error.message) == (0, "RuntimeError", "boom")
    run.says(run.released())
    assert run.name == "errored"
    assert isinstance(run.state.phase, Errored)
    assert run.state.phase.failure is not None
    assert run.state.phase.failure.error.traceback is not None
    assert status(run.state, run.head, AT).error is not None
    assert assignment(run.state, run.head).want == "gone"


def test_given_an_unlimited_budget_then_the_reason_says_so() -> None:
    run = Run(1, failure=FailureConfig(max_failures=-1)).running()
    run.says(run.failed(0))
    assert "worker failure 1 (no limit)" in run.the(FailureDecided).reason


@pytest.mark.parametrize(
    ("code", "signal", "oom", "kind", "words"),
    [
        (3, None, False, "exit", "RankExited: exited with code 3 without returning from the training function"),
        (0, None, False, "exit", "RankExited: exited with code 0 without returning from the training function"),
        (None, 9, False, "signal", "RankKilled: ended by SIGKILL"),
        (None, 99, False, "signal", "RankKilled: ended by signal 99"),
        (None, 9, True, "oom", "OutOfMemory: ended by SIGKILL for want of memory"),
        (None, None, False, "exit", "RankExited: ended without returning from the training function, nobody"),
    ],
)
def test_given_a_rank_that_just_ends_then_how_it_ended_is_the_failure(
    code: int | None, signal: int | None, oom: bool, kind: str, words: str
) -> None:
    run = Run(1).running()
    run.says(run.exited(0, code, signal=signal, oom=oom, last_lines="one\nthe last words\n"))
    if code is signal is None:
        run.waits(CAUSE_AWAITED_MAX_S)
    decided = run.the(FailureDecided)
    assert decided.failure.kind == kind
    assert f"{words}" in decided.reason
    assert decided.failure.error.message.endswith("its last line: the last words")


@pytest.mark.parametrize("others_started", [True, False])
def test_given_storage_that_failed_a_rank_then_it_costs_a_worker_failure_whether_the_others_are_there_or_not(
    others_started: bool,
) -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).lays_out()
    run.says(run.started(0), *([run.started(1)] if others_started else []))
    run.says(run.failed(0, "the disk is full", "storage"))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.budget, decided.failure.kind) == ("retry", "worker", "storage")


def test_given_a_rank_that_told_its_error_when_its_process_ends_then_that_is_no_second_failure() -> None:
    run = Run(2, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(0), run.exited(0, 1))
    assert run.the(FailureDecided).others == 0
    run = Run(1, failure=FailureConfig(max_failures=3)).running()
    run.says(run.returned(0), run.exited(0, 139))
    assert run.path == ["running>shutting_down"]


def test_given_a_rank_that_its_runner_ended_unasked_then_the_runner_is_to_blame() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    run.says(run.exited(0, signal=15, asked=True))
    assert run.the(FailureDecided).failure.kind == "runner"
    assert "ended by SIGTERM: its runner ended it though the run goes on" in run.the(FailureDecided).reason


# --- the first cause


def test_given_several_failures_in_one_entry_then_kind_goes_before_time_and_order_of_arrival() -> None:
    run = Run(3, failure=FailureConfig(max_failures=1)).running()
    run.says(
        run.failed(0, "connection reset by rank 2", "peer", ago_s=0.09),
        run.failed(1, "timed out in all_gather", "peer", ago_s=0.08),
        run.exited(2, signal=9),
    )
    decided = run.the(FailureDecided)
    assert (decided.failure.rank, decided.failure.kind, decided.others) == (2, "signal", 2)
    assert [other.rank for other in run.state.others] == [0, 1]
    assert run.state.budgets["worker"].spent == 1


def test_given_two_failures_of_a_kind_then_the_earlier_on_the_runs_clock_is_first() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "late"), run.failed(1, "early", ago_s=0.05))
    assert run.the(FailureDecided).failure.rank == 1


def test_given_runners_whose_facts_were_long_under_way_then_their_clocks_are_compared_by_what_they_measured() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).places()
    slow = run.ready("node-a", offset_s=0.5)
    run.says(run.ready("node-b"))
    run.says(slow, after_s=2.0)
    offsets = {place.node: place.ready.offset_s for place in run.group.places if place.ready is not None}
    assert offsets["node-a"] - offsets["node-b"] == pytest.approx(0.5)


def test_given_more_failures_than_are_kept_in_full_then_all_are_counted() -> None:
    ranks = ERRORS_INLINE_MAX_COUNT + 4
    run = Run(ranks, failure=FailureConfig(max_failures=1)).running()
    run.says(*(run.failed(rank) for rank in range(ranks)))
    assert run.the(FailureDecided).others == ranks - 1
    assert len(run.state.others) == ERRORS_INLINE_MAX_COUNT - 1
    assert all(other.error.traceback is None for other in run.state.others)


def test_given_a_decided_failure_when_its_cause_is_told_late_then_the_first_cause_is_revised() -> None:
    run = Run(2, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    run.waits(CAUSE_AWAITED_MAX_S)
    assert run.state.attempt == 2
    run.says(run.failed(1, "the real one", attempt=1, ago_s=CAUSE_AWAITED_MAX_S + 0.15))
    revised = run.the(FirstCauseRevised)
    assert (revised.failure.rank, revised.was.rank) == (1, 0)
    assert "the real one; it came before what was taken for the first cause" in revised.reason
    assert run.state.failure is not None
    assert run.state.failure.rank == 1
    assert run.state.failure.error.traceback is not None
    assert run.state.budgets["worker"].spent == 1
    assert run.state.dropped.stale == 1
    run.says()
    assert run.none(FirstCauseRevised)


def test_given_broken_connections_when_a_loss_is_seen_much_later_then_it_is_not_what_broke_them() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    run.waits(CAUSE_AWAITED_MAX_S)
    run.says(run.runner_lost("node-b", attempt=1), after_s=6.0)
    assert run.none(FirstCauseRevised)


def test_given_broken_connections_when_a_node_turns_out_to_be_silent_since_before_then_it_is_the_first_cause() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "connection reset", "peer"), after_s=30.0)
    run.says(
        SilenceConcluded(source="node-b", silence_s=60.0, lost=True, reason="node-b was silent for 60 s"), after_s=30.0
    )
    revised = run.the(FirstCauseRevised)
    assert (revised.failure.kind, revised.failure.node, revised.failure.attempt) == ("node", "node-b", 1)
    assert run.state.attempt == 2
    assert run.the(FailureDecided).failure.attempt == 2


def test_given_a_decided_failure_when_something_fails_after_it_then_that_revises_nothing() -> None:
    run = Run(2, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(0, "connection reset", "peer"))
    run.waits(CAUSE_AWAITED_MAX_S)
    run.says(run.failed(1, "cut off by the restart", attempt=1))
    assert run.none(FirstCauseRevised)
    assert len(run.state.late) == 1


def test_given_late_evidence_then_it_is_kept_for_a_time_and_to_a_limit_and_only_of_the_decided_attempt() -> None:
    ranks = LATE_EVIDENCE_MAX + 3
    run = Run(ranks, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(0))
    run.says(*(run.exited(rank, 1, attempt=1) for rank in range(1, ranks)))
    assert len(run.state.late) == LATE_EVIDENCE_MAX
    run.says(run.runner_lost(attempt=1))
    assert len(run.state.late) == LATE_EVIDENCE_MAX
    run = Run(2, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(0)).says(run.failed(1, attempt=1), after_s=LATE_EVIDENCE_S + 1)
    assert run.state.late == ()
    run.starts().says(run.failed(0)).says(run.failed(1, attempt=1), run.exited(0, 1, attempt=2))
    assert run.state.late == (), "of an attempt before, and the end of a rank whose error is known"


def test_given_ended_attempts_when_their_ranks_are_said_to_have_ended_as_asked_then_that_is_no_evidence() -> None:
    run = Run(2, failure=FailureConfig(max_failures=3)).running()
    run.says(run.failed(0)).says(run.exited(1, signal=15, asked=True, attempt=1))
    assert run.state.late == ()
    assert run.state.dropped.stale == 1


# --- where it starts again


def test_given_lost_runners_when_none_is_left_then_the_group_is_released_and_placed_anew() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.runner_lost("node-b"), run.runner_lost("node-a"))
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.budget, decided.failure.rank) == ("runner", "worker", None)
    assert "node-a failed first: RunnerLost: the runner ended by SIGKILL" in decided.reason
    assert run.path == ["running>restarting"]
    assert [rank.phase for rank in run.group.ranks] == ["exited", "exited"]
    stop = assignment(run.state, run.head).stop
    assert stop is not None
    assert stop.grace_s == Timeouts().restart_grace_s
    assert status(run.state, run.head, AT).waiting == "the release of the group by pool-local"
    run.says(run.released())
    assert run.path == ["restarting>scheduling"]
    assert not run.the(AttemptStarted).kept
    assert run.group.places == ()


def test_given_a_user_failure_when_another_runner_is_gone_too_then_its_place_is_not_kept() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.runner_lost("node-b"), run.failed(0))
    assert run.the(FailureDecided).failure.kind == "user"
    assert run.the(AttemptStarted).vacated == (1,)


def test_given_new_places_then_ranks_keep_their_node_where_it_is_still_there() -> None:
    run = Run(3, nodes=("node-a", "node-b", "node-c"), failure=FailureConfig(max_failures=1)).running()
    run.says(*(run.runner_lost(node) for node in run.nodes)).says(run.released())
    run.nodes = ("node-b", "node-c", "node-d")
    run.join("node-d")
    run.lays_out()
    assert [rank.node for rank in run.group.ranks] == ["node-d", "node-b", "node-c"]


def test_given_a_back_off_then_the_group_is_released_meanwhile_and_the_wait_doubles() -> None:
    run = Run(1, failure=FailureConfig(max_failures=-1, backoff_s=2.0, backoff_max_s=5.0)).running()
    waits: list[float] = []
    for _ in range(3):
        run.says(run.failed(0))
        assert isinstance(run.state.phase, Restarting)
        assert "starting again on new places in" in run.state.phase.reason
        waits.append(run.state.phase.not_before_t - run.t)
        assert "the back-off, until" in (status(run.state, run.head, AT).waiting or "")
        assert assignment(run.state, run.head).want == "stop"
        run.says(run.released()).waits(5.0)
        assert run.name == "scheduling"
        run.running()
    assert waits == pytest.approx([2, 4, 5])


def test_given_a_back_off_that_is_over_when_the_group_is_still_held_then_its_release_is_waited_for() -> None:
    run = Run(1, failure=FailureConfig(max_failures=-1, backoff_s=2.0)).running()
    run.says(run.failed(0)).waits(2.0)
    assert run.name == "restarting"
    assert run.wake_at is None
    assert status(run.state, run.head, AT).waiting == "the release of the group by pool-local"
    run.says(run.released())
    assert run.name == "scheduling"


def test_given_an_attempt_that_is_dealt_with_when_more_of_it_fails_then_no_second_unit_is_spent() -> None:
    run = Run(3, failure=FailureConfig(max_failures=5, backoff_s=1.0)).running()
    run.says(run.failed(0))
    run.says(run.failed(1), run.exited(2, signal=11), run.runner_lost())
    assert run.none(FailureDecided)
    assert run.state.budgets["worker"].spent == 1
    assert len(run.state.late) == 3


def test_given_ranks_that_all_returned_when_their_runner_goes_then_nothing_is_lost() -> None:
    run = Run(2, nodes=TWO_NODES).running()
    run.says(run.returned(1)).says(run.runner_lost("node-b"))
    assert run.said == ()
    run.says(run.returned(0), run.runner_lost("node-a"))
    assert run.path == ["running>shutting_down"]
    assert run.the(StateChanged).next == "finished"


def test_given_a_running_group_that_the_pool_let_go_then_it_is_lost() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    run.says(run.released())
    assert run.the(FailureDecided).failure.error.type == "GroupLost"
    assert "pool local failed: GroupLost" in run.the(FailureDecided).reason
    assert run.path == ["running>restarting", "restarting>scheduling"]
    assert not run.the(AttemptStarted).kept
