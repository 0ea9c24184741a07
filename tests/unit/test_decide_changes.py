"""Preemption and resizing: driven by facts and requests."""

import pytest

from runfold.controller.assignment import assignment
from runfold.controller.policies import DEFAULT, BudgetedFailures, FixedScaling, Policies
from runfold.controller.sizes import Hold, Scaling
from runfold.controller.status import status
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.limits import PREEMPTION_WITHIN_S
from runfold.events.requests import (
    AbortRun,
    AdmitNode,
    CancelPreemption,
    NoticePreemption,
    ResizeRun,
)
from runfold.events.state import Preempting, Restarting, RunState
from runfold.events.transitions import AttemptStarted, FailureDecided, RequestAccepted, RequestRefused, StateChanged
from support.runs import AT, Run

TWO_NODES = ("node-a", "node-b")


def preempting(**config: float) -> Run:
    failure = FailureConfig(preemption_grace_s=config.get("grace_s", 0.0))
    run = Run(2, nodes=TWO_NODES, failure=failure).running()
    return run.says(run.noticed("node-b", within_s=config.get("within_s", 30.0), reason="spot reclaim"))


def test_given_a_notice_for_a_node_of_the_group_then_the_run_is_preempting_until_the_deadline_and_the_grace() -> None:
    run = preempting(within_s=30.0, grace_s=5.0)
    assert run.path == ["running>preempting"]
    change = run.the(StateChanged)
    assert change.nodes == ("node-b",)
    assert change.deadline_t == pytest.approx(run.t + 35.0)
    assert change.reason == "node-b will be taken back in 30.0 s, and 5 s of grace: spot reclaim"
    assert run.wake_at == pytest.approx(run.t + 35.0)
    assert assignment(run.state, run.head).want == "train"
    assert assignment(run.state, run.head).excluded_nodes == ("node-b",)


def test_given_a_notice_that_does_not_say_when_then_two_minutes_are_assumed() -> None:
    run = Run(2, nodes=TWO_NODES).running()
    run.says(run.noticed("node-b", within_s=None))
    assert run.wake_at == pytest.approx(run.t + PREEMPTION_WITHIN_S)
    assert run.the(StateChanged).reason == "node-b will be taken back in 120.0 s"


def test_given_a_notice_for_other_nodes_then_nothing_happens() -> None:
    run = Run(2, nodes=TWO_NODES).running()
    run.says(run.noticed("node-z"))
    assert run.name == "running"


def test_given_a_notice_and_an_error_in_one_entry_then_the_notice_goes_first() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0), run.noticed("node-b"))
    assert run.path[:2] == ["running>preempting", "preempting>restarting"]
    assert run.the(FailureDecided).budget == "worker"


def test_given_preempting_when_the_deadline_is_over_then_the_preemption_budget_pays_and_the_place_is_left() -> None:
    run = preempting().waits(30.0)
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.budget, decided.spent, decided.limit) == ("preempted", "preemption", 1, -1)
    assert "node-b failed first: Preempted: node-b taken back before the ranks were done" in decided.reason
    assert run.path == ["preempting>restarting", "restarting>scheduling"]
    begun = run.the(AttemptStarted)
    assert (begun.kept, begun.vacated) == (True, (1,))
    assert run.state.notice is None, "the notice that was acted on is over with its group"


def test_given_preempting_when_every_rank_returns_then_the_run_finishes() -> None:
    run = preempting().finishing()
    assert run.path == ["preempting>shutting_down"]


def test_given_preempting_when_the_node_stays_after_all_then_the_run_is_running_again() -> None:
    run = preempting()
    run.says(run.cancelled("node-b"))
    assert run.path == ["preempting>running"]
    assert run.the(StateChanged).reason == "node-b stays after all"
    run.says(run.cancelled("node-b"))
    assert run.name == "running"


def test_given_preempting_when_more_nodes_are_named_then_they_are_one_notice_with_the_earliest_deadline() -> None:
    run = preempting(within_s=30.0)
    first_t = run.t
    run.says(run.noticed("node-a", within_s=10.0), after_s=2.0)
    assert run.path == ["preempting>preempting"]
    assert isinstance(run.state.phase, Preempting)
    assert list(run.state.phase.nodes) == ["node-a", "node-b"]
    assert run.state.phase.deadline_t == pytest.approx(first_t + 12.0)
    run.says(run.noticed("node-a", within_s=60.0))
    assert run.said == ()
    run.says(run.cancelled("node-a"))
    assert run.path == ["preempting>preempting"]
    assert list(run.state.phase.nodes) == ["node-b"]


def test_given_preempting_when_the_node_goes_then_the_others_have_until_the_deadline() -> None:
    run = preempting()
    run.says(run.runner_lost("node-b"))
    assert run.said == ()
    run.says(run.failed(0, "connection reset", "peer"))
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.failure.node, decided.others) == ("preempted", "node-b", 1)
    assert decided.budget == "preemption"


def test_given_preempting_when_a_rank_raises_then_it_is_an_ordinary_failure() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.noticed("node-b"))
    run.says(run.failed(1))
    assert run.the(FailureDecided).budget == "worker"


def test_given_preempting_when_the_reclaimed_node_goes_and_the_notice_is_withdrawn_then_it_was_a_lost_runner() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(run.noticed("node-b")).says(run.runner_lost("node-b"))
    run.says(run.cancelled("node-b"))
    assert run.the(FailureDecided).failure.kind == "runner"


def test_given_a_reclaim_right_after_its_notice_then_the_new_group_waits_until_notices_have_come_together() -> None:
    run = Run(1, timeouts=Timeouts(coalesce_s=5.0)).running()
    run.says(run.noticed("local", within_s=0.0))
    assert run.name == "preempting"
    run.says(run.runner_lost())
    assert run.name == "restarting"
    assert isinstance(run.state.phase, Restarting)
    assert run.state.phase.not_before_t == pytest.approx(run.state.phase.since_t + 4.9)


def test_given_a_spent_preemption_budget_then_the_run_ends() -> None:
    run = Run(1, failure=FailureConfig(max_preemption_failures=0)).running()
    run.says(run.noticed("local", within_s=1.0)).waits(1.0)
    assert run.name == "shutting_down"
    assert "no preemption failure is allowed (failure.max_preemption_failures = 0)" in run.state.phase.reason


def test_given_a_notice_while_scheduling_when_ranks_start_then_the_run_is_preempting_at_once() -> None:
    run = Run(2, nodes=TWO_NODES).lays_out()
    run.says(run.noticed("node-a"))
    assert run.name == "scheduling"
    run.starts()
    assert run.path == ["scheduling>running", "running>preempting"]


def test_given_a_notice_whose_time_is_over_when_an_attempt_starts_then_it_is_forgotten() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    run.says(run.noticed("node-z", within_s=1.0)).waits(2.0)
    run.says(run.failed(0))
    assert run.state.notice is None
    assert assignment(run.state, run.head).excluded_nodes == ("node-z",), "until it has come back"


# --- by request


def test_given_a_request_that_notices_then_it_is_answered_and_done() -> None:
    run = Run(2, nodes=TWO_NODES).running()
    run.says(NoticePreemption(id="r1", nodes=("node-b",), within_s=30.0, reason="maintenance"))
    assert run.the(RequestAccepted).reason == "node-b will be taken back: maintenance"
    assert run.path == ["running>preempting"]
    run.says(CancelPreemption(id="r2", nodes=("node-b",)))
    assert run.the(RequestAccepted).reason == "node-b stays after all"
    assert run.path == ["preempting>running"]


def test_given_a_request_that_makes_no_sense_then_it_is_refused_with_the_reason() -> None:
    run = Run(2, nodes=TWO_NODES).running()
    run.says(
        NoticePreemption(id="r1", nodes=("node-z",)),
        NoticePreemption(id="r2", nodes=()),
        CancelPreemption(id="r3", nodes=("node-a",)),
        CancelPreemption(id="r4", nodes=()),
        AdmitNode(id="r5", node="node-a"),
        ResizeRun(id="r9", num_workers=3),
    )
    reasons = [said.reason for said in run.said if isinstance(said, RequestRefused)]
    assert reasons == [
        "the run has no rank on node-z; it runs on node-a, node-b",
        "a notice must name the nodes that will be taken back",
        "no notice is in force for node-a",
        "no notice is in force for no node at all",
        "node-a is not excluded from this run",
        "the job has a fixed size of 2; only one with num_workers = [min, max] can change",
    ]
    assert status(run.state, run.head, AT).requests["r5"] == "refused: node-a is not excluded from this run"


def test_given_a_run_that_is_ending_then_it_is_not_changed_any_more() -> None:
    run = (
        Run((1, 3))
        .running()
        .says(AbortRun(id="r0"), ResizeRun(id="r1", num_workers=1), NoticePreemption(id="r2", nodes=("local",)))
    )
    assert [said.reason for said in run.said if isinstance(said, RequestRefused)] == ["the run is ending"] * 2


def test_given_answers_then_only_the_last_ones_are_kept() -> None:
    run = Run(1).running()
    for turn in range(3):
        run.says(*(AdmitNode(id=f"r{turn}-{i}", node="x") for i in range(120)))
    assert len(run.state.answered) == 256
    assert run.state.answered[-1].id == "r2-119"


# --- resize


def test_given_an_elastic_run_when_a_resize_is_asked_for_then_the_group_stops_and_starts_at_the_new_size() -> None:
    run = Run((1, 4)).running()
    assert run.group.num_workers == 4
    run.says(ResizeRun(id="r1", num_workers=2, by="ada"))
    assert run.the(RequestAccepted).reason == "2 ranks from the next start of the group on; ada asked for it"
    assert run.path == ["running>resizing"]
    assert run.the(StateChanged).reason == (
        "resizing from 4 to 2 ranks: as asked for, with room for 4; -50% ranks; cost: a restart, and nothing done so "
        "far"
    )
    assert assignment(run.state, run.head).want == "stop"
    assert status(run.state, run.head, AT).waiting == "the release of the group by pool-local"
    run.says(*(run.exited(rank, signal=15, asked=True) for rank in range(4)), run.runner_lost())
    assert run.said == ()
    run.says(run.released())
    assert run.path == ["resizing>scheduling"]
    assert run.the(AttemptStarted).num_workers == 2
    run.running()
    assert run.group.num_workers == 2
    assert all(budget.spent == 0 for budget in run.state.budgets.values())


def test_given_a_resize_then_sizes_out_of_bounds_are_refused_and_the_present_one_is_no_change() -> None:
    run = Run((1, 4)).running()
    run.says(ResizeRun(id="r1", num_workers=5), ResizeRun(id="r2", num_workers=0), ResizeRun(id="r3", num_workers=4))
    assert [said.reason for said in run.said] == [
        "5 ranks are not within num_workers = [1, 4]",
        "0 ranks are not within num_workers = [1, 4]",
        "4 ranks are what the run has or is about to have",
    ]


def test_given_a_failure_when_another_size_is_wanted_then_places_are_not_kept() -> None:
    run = Run((1, 4), failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0), ResizeRun(id="r1", num_workers=3))
    assert run.path == ["running>restarting"]
    run.says(run.released())
    assert run.group.num_workers == 3


def test_given_resizing_when_aborted_then_the_run_ends() -> None:
    run = Run((1, 4)).running().says(ResizeRun(id="r1", num_workers=2)).says(AbortRun(id="r2"))
    assert run.path == ["resizing>shutting_down"]


class Patient(FixedScaling):
    """Starts nothing before the pool has said what it has."""

    def idle(self, state: RunState) -> Scaling:
        return super().idle(state) if state.capacity is not None else Hold("the pool's size is not known")


def test_given_a_scaling_policy_that_holds_then_the_run_waits_for_facts_that_change_its_mind() -> None:
    policies = Policies(scaling=Patient(), failure=BudgetedFailures())
    run = Run(1, policies=policies)
    assert run.name == "initializing"
    assert run.wake_at is None
    assert assignment(run.state, run.head).want == "stop"
    assert status(run.state, run.head, AT).waiting is None
    run.says(run.capacity(local=4))
    assert run.path == ["initializing>scheduling"]


class Once(FixedScaling):
    """Starts one attempt, and no other."""

    def idle(self, state: RunState) -> Scaling:
        return super().idle(state) if state.attempt == 0 else Hold()


def test_given_a_scaling_policy_that_holds_after_a_failure_then_the_run_stays_restarting() -> None:
    policies = Policies(scaling=Once(), failure=DEFAULT.failure)
    run = Run(1, policies=policies, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0)).says(run.released())
    assert run.name == "restarting"
