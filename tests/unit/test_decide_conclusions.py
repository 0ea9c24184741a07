"""What the controller concludes itself, what a job may set about failures, and policies of one's own."""

from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.looking import STACKS_TIMEOUT_S
from runfold.controller.policies import DEFAULT, BudgetedFailures, Choice, FixedScaling, Policies
from runfold.controller.status import status
from runfold.events.conclusions import ProgressStopped, SilenceConcluded
from runfold.events.config import FailureConfig
from runfold.events.failures import ErrorInfo, Failure
from runfold.events.requests import AbortRun, AdmitNode
from runfold.events.state import RunState
from runfold.events.transitions import (
    AttemptStarted,
    FailureDecided,
    NodeAdmitted,
    NodeExcluded,
    StateChanged,
    TaskOrdered,
)
from support.runs import AT, POOL, Run

TWO_NODES = ("node-a", "node-b")


# --- conclusions


def silence(source: str, *, lost: bool, silence_s: float = 60.0) -> SilenceConcluded:
    return SilenceConcluded(
        source=source, silence_s=silence_s, lost=lost, reason=f"{source} silent for {silence_s:g} s"
    )


def test_given_silence_when_it_is_no_loss_then_it_is_shown_and_nothing_done() -> None:
    run = Run(1).running().says(silence("local", lost=False, silence_s=10.0))
    assert run.said == ()
    assert run.state.sources["local"].silence_s == 10.0
    run.says(silence("local", lost=False, silence_s=0.0))
    assert run.state.sources["local"].silence_s is None


def test_given_silence_when_it_is_a_loss_then_the_node_is_lost() -> None:
    run = Run(2, nodes=TWO_NODES, failure=FailureConfig(max_failures=1)).running()
    run.says(silence("node-b", lost=True))
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.failure.node, decided.budget) == ("node", "node-b", "worker")
    assert run.path == ["running>restarting", "restarting>scheduling"]
    assert run.the(AttemptStarted).vacated == (1,)
    run.says(silence("node-b", lost=True))
    assert run.said == ()


def test_given_silence_of_a_source_without_a_place_then_nothing_is_lost() -> None:
    run = Run(1).running().says(silence(POOL, lost=True), silence("nobody", lost=True))
    assert run.said == ()
    assert "nobody" not in run.state.sources


def stopped(*ranks: int, limit_s: float | None) -> ProgressStopped:
    return ProgressStopped(ranks=ranks, quiet_s=75.0, limit_s=limit_s)


def test_given_no_progress_when_the_job_sets_no_limit_then_it_is_shown_and_nothing_done() -> None:
    run = Run(2).running().says(stopped(0, 1, limit_s=None))
    assert [type(said) for said in run.said] == [TaskOrdered]
    assert status(run.state, run.head, AT).waiting == "rank 0, rank 1: no report for 75 s"
    run.says(stopped(limit_s=None))
    assert status(run.state, run.head, AT).waiting is None


def test_given_no_progress_when_the_limit_is_over_then_the_hang_budget_pays_and_the_places_are_kept() -> None:
    run = Run(2).running().says(stopped(1, 9, limit_s=70.0))
    assert run.none(FailureDecided)
    run.waits(STACKS_TIMEOUT_S)
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.failure.rank, decided.budget, decided.limit) == ("hang", 1, "hang", 1)
    assert "no report for 75 s, and timeouts.progress_timeout_s is 70" in decided.reason
    assert run.the(AttemptStarted).kept
    run.starts().says(stopped(0, limit_s=70.0)).waits(STACKS_TIMEOUT_S)
    assert run.the(FailureDecided).decision == "raise"


def test_given_no_progress_when_the_rank_returned_in_the_same_entry_then_it_did_not_hang() -> None:
    run = Run(2).running()
    run.says(stopped(0, limit_s=70.0), run.returned(0))
    assert run.none(FailureDecided)


def test_given_no_progress_of_ranks_that_are_not_at_work_or_of_another_attempt_then_it_is_passed_over() -> None:
    run = Run(2).lays_out().says(stopped(0, limit_s=70.0))
    assert run.said == ()
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0)).starts().says(replace(stopped(0, limit_s=70.0), attempt=1))
    assert run.said == ()
    run.says(AbortRun(id="r1")).says(stopped(0, limit_s=70.0))
    assert run.said == ()


def test_given_silence_of_an_older_incarnation_then_it_is_passed_over() -> None:
    run = Run(1).running().join("local", boot="b2").says(replace(silence("local", lost=True), incarnation=1))
    assert run.said == ()
    assert run.state.sources["local"].silence_s is None


# --- options


def test_given_reset_after_progress_when_so_many_reports_were_made_then_the_count_starts_anew() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1, reset_after_progress=3)).running()
    run.says(run.failed(0)).starts()
    run.says(*(run.reported(0, index) for index in range(3))).says(run.failed(0))
    assert run.the(FailureDecided).spent == 1
    run.starts().says(run.reported(0, 0)).says(run.failed(0))
    assert run.the(FailureDecided).decision == "raise"


def test_given_repeat_limit_when_the_same_error_comes_at_the_same_step_that_often_then_the_run_stops_early() -> None:
    run = Run(1, failure=FailureConfig(max_failures=-1, repeat_limit=3)).running()
    for attempt in (1, 2):
        run.says(run.reported(0, 0)).says(run.failed(0, f"bad batch at 0x{attempt}f"))
        assert run.the(FailureDecided).decision == "retry"
        run.starts()
    run.says(run.reported(0, 0)).says(run.failed(0, "bad batch at 0x3f"))
    assert run.the(FailureDecided).decision == "raise"
    assert "the same error at the same step 3 times in a row, and failure.repeat_limit is 3" in run.state.phase.reason


def test_given_repeat_limit_when_the_step_or_the_error_differs_then_it_is_no_repeat() -> None:
    run = Run(1, failure=FailureConfig(max_failures=-1, repeat_limit=2)).running()
    run.says(run.reported(0, 0)).says(run.failed(0)).starts()
    run.says(run.reported(0, 0), run.reported(0, 1)).says(run.failed(0)).starts()
    run.says(run.failed(0, "something else"))
    assert run.the(FailureDecided).decision == "retry"
    run = Run(1, failure=FailureConfig(repeat_limit=1)).running()
    run.says(run.failed(0))
    assert "the same error at the same step the first time" in run.the(FailureDecided).reason


def test_given_node_exclude_after_when_a_node_failed_that_often_then_later_attempts_stay_off_it() -> None:
    config = FailureConfig(max_failures=-1, node_exclude_after=2)
    run = Run(2, nodes=TWO_NODES, failure=config).running()
    run.says(run.capacity(node_a=2, node_b=2, node_c=2))
    run.says(run.runner_lost("node-b")).says(run.place_again(1, "node-b", 1)).join("node-b", boot="b2")
    run.says(run.ready("node-b", attempt=2)).starts()
    assert (run.name, run.state.platform_failures) == ("running", {"node-b": 1})
    run.says(run.runner_lost("node-b"))
    excluded = run.the(NodeExcluded)
    assert (excluded.node, excluded.failures) == ("node-b", 2)
    assert "node-b failed 2 times, and failure.node_exclude_after is 2" in excluded.reason
    assert assignment(run.state, run.head).excluded_nodes == ("node-b",)
    assert status(run.state, run.head, AT).excluded_nodes == {"node-b": "failed too often"}
    run.says(AdmitNode(id="r1", node="node-b", by="ops"))
    assert run.the(NodeAdmitted).node == "node-b"
    assert status(run.state, run.head, AT).excluded_nodes == {}
    assert (run.state.excluded, run.state.platform_failures) == ((), {})


def test_given_node_exclude_after_when_the_run_needs_the_node_or_the_code_is_to_blame_then_it_stays() -> None:
    config = FailureConfig(max_failures=-1, node_exclude_after=1)
    run = Run(2, nodes=TWO_NODES, failure=config).running()
    run.says(run.capacity(node_a=1, node_b=1))
    run.says(run.runner_lost("node-b"))
    assert run.none(NodeExcluded)
    run = Run(2, nodes=TWO_NODES, failure=config).running()
    run.says(run.runner_lost("node-b"))
    assert run.none(NodeExcluded), "the pool's size is not known"
    run = Run(2, nodes=TWO_NODES, failure=config).running()
    run.says(run.capacity(node_a=2, node_b=2))
    run.says(run.failed(0))
    assert run.none(NodeExcluded)


def test_given_node_exclude_after_then_what_nodes_hold_of_this_run_counts_not_their_slots() -> None:
    config = FailureConfig(max_failures=-1, node_exclude_after=1)
    run = Run(2, nodes=TWO_NODES, failure=config).running()
    run.says(replace(run.room(node_a=1, node_b=2), slots={"node-a": 8, "node-b": 8}))
    run.says(run.runner_lost("node-b"))
    assert run.none(NodeExcluded), "ranks that need eight slots each do not fit on the other node"
    run = Run(2, nodes=TWO_NODES, failure=config).running()
    run.says(replace(run.room(node_a=0, node_b=2), whole={"node-a": 2, "node-b": 2}))
    run.says(run.runner_lost("node-b"))
    assert run.the(NodeExcluded).node == "node-b", "that the other one is in use now is no reason to keep it"


# --- policies of one's own


class PassOver(BudgetedFailures):
    """Lets a group go on without the ranks that failed."""

    def choose(self, state: RunState, failure: Failure) -> Choice:
        if failure.kind != "user":
            return super().choose(state, failure)
        return Choice(decision="noop", reason="one rank less is no harm")


def test_given_a_policy_that_passes_a_failure_over_then_it_is_not_asked_again_and_the_others_go_on() -> None:
    policies = Policies(scaling=FixedScaling(), failure=PassOver())
    run = Run(2, policies=policies).running()
    run.says(run.failed(1))
    decided = run.the(FailureDecided)
    assert decided.decision == "noop"
    assert decided.reason == ("rank 1 failed first: RuntimeError: boom; one rank less is no harm; the run goes on")
    assert run.name == "running"
    run.says(run.exited(1, 1))
    assert run.said == ()
    run.says(run.returned(0))
    assert "1 of 2 ranks returned" in run.the(StateChanged).reason
    assert run.state.budgets["worker"].spent == 0


def test_given_a_passed_over_failure_when_another_kind_comes_then_it_is_asked_about() -> None:
    run = Run(2, policies=Policies(scaling=FixedScaling(), failure=PassOver())).running()
    run.says(run.failed(1)).says(run.exited(0, signal=9))
    assert run.the(FailureDecided).decision == "raise"


def test_policies_have_names_for_the_log() -> None:
    assert DEFAULT.names == (
        "scaling:by-job",
        "failure:budgets",
        "places:mended",
        "notices:end-with-supervisor",
        "timers:as-they-stand",
    )


def test_a_headline_is_one_line_of_at_most_200_characters() -> None:
    assert ErrorInfo(type="E", message="a\nb", kind="user").headline == "E: a"
    assert ErrorInfo(type="E", message="", kind="user").headline == "E"
    assert len(ErrorInfo(type="E", message="x" * 500, kind="user").headline) == 200
