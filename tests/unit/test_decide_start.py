"""From a job to ranks in user code: accept, place, introduce, lay out, start."""

from typing import Literal

import pytest
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.facts import PlaceOffer
from runfold.events.state import Rescheduling, Restarting, Scheduling
from runfold.events.transitions import (
    AttemptStarted,
    ControllerChanged,
    FailureDecided,
    GroupLaidOut,
    RunAccepted,
    SourceJoined,
    StateChanged,
)
from support.runs import AT, POOL, Run


def kinds(run: Run) -> list[str]:
    return [type(said).__name__ for said in run.said]


def test_given_a_job_when_it_is_taken_then_entry_0_accepts_names_its_controller_and_begins_the_first_attempt() -> None:
    run = Run(joined=False)
    assert kinds(run) == ["RunAccepted", "ControllerChanged", "AttemptStarted", "StateChanged"]
    assert run.the(RunAccepted).cause.input == 0
    assert run.the(RunAccepted).reason == "somebody asked for digits:train on 2 ranks"
    changed = run.the(ControllerChanged)
    assert (changed.epoch, changed.controller, changed.cause.input) == (1, "ctl", 1)
    assert run.the(AttemptStarted).attempt == 1
    assert run.path == ["initializing>scheduling"]
    assert run.state.accepted_at == AT
    assert run.wake_at is None


def test_given_a_new_run_when_nobody_speaks_then_places_are_asked_for_and_the_status_says_who_is_missing() -> None:
    run = Run(joined=False)
    asked = assignment(run.state, run.head)
    assert (asked.want, asked.attempt, asked.num_workers, asked.places) == ("place", 1, 2, ())
    assert asked.resources == {"CPU": 1.0}
    assert asked.job is not None
    assert asked.job.entrypoint == "digits:train"
    assert asked.accepted_at == AT
    assert status(run.state, run.head, AT).waiting == "a supervisor of pool local: none has spoken yet"


def test_given_a_source_without_incarnation_when_it_joins_then_it_gets_one_that_the_assignment_shows() -> None:
    run = Run(joined=False).join(POOL)
    joined = run.the(SourceJoined)
    assert (joined.source, joined.boot, joined.incarnation) == (POOL, f"{POOL}-b1", 1)
    shown = assignment(run.state, run.head)
    assert [(given.source, given.boot, given.incarnation) for given in shown.joined] == [(POOL, f"{POOL}-b1", 1)]
    assert shown.folded == {POOL: 0}


def test_given_a_joined_source_when_the_same_process_asks_again_then_nothing_is_handed_out() -> None:
    run = Run(joined=False).join(POOL)
    run.join(POOL)
    assert run.said == ()
    assert run.state.sources[POOL].incarnation == 1


def test_given_a_joined_source_when_its_next_process_joins_then_the_older_never_comes_back() -> None:
    run = Run(joined=False).join(POOL).join(POOL, boot="b2")
    assert run.the(SourceJoined).incarnation == 2
    assert "incarnation 1 is over" in run.the(SourceJoined).reason
    run.join(POOL, boot="b1")
    assert run.said == ()
    assert run.state.sources[POOL].boot == f"{POOL}-b2"


def test_given_short_slots_when_the_supervisor_says_it_queues_then_the_status_says_for_what() -> None:
    run = Run().says()
    run.says(run.queued(ahead=1, free=1, needed=2))
    assert status(run.state, run.head, AT).waiting == "2 slots needed, 1 free, 1 run ahead"
    run.says(run.queued(ahead=0, free=0, needed=1))
    assert status(run.state, run.head, AT).waiting == "1 slot needed, 0 free"
    run.says(run.queued(ahead=3))
    assert status(run.state, run.head, AT).waiting == "2 slots needed, 0 free, 3 runs ahead"
    run.says(run.placement_failed(reason="the pool is draining"))
    assert status(run.state, run.head, AT).waiting == "the pool is draining"
    assert run.name == "scheduling"


def test_given_places_when_the_supervisor_says_so_then_runners_have_start_timeout_s_to_be_ready() -> None:
    run = Run(timeouts=Timeouts(start_timeout_s=20.0)).places()
    assert run.wake_at == pytest.approx(run.t + 20.0)
    assert status(run.state, run.head, AT).waiting == "the runner on local"
    shown = assignment(run.state, run.head)
    assert shown.want == "place"
    assert [(place.node, place.slots, place.source, place.incarnation) for place in shown.places] == [
        ("local", 2, "local", 1)
    ]


def test_given_places_when_every_runner_is_ready_then_ranks_are_laid_out_and_the_group_may_train() -> None:
    run = Run(3, nodes=("node-a", "node-b")).lays_out()
    laid = run.the(GroupLaidOut)
    assert [(who.rank, who.life, who.place, who.local_rank, who.node_rank) for who in laid.layout] == [
        (0, 1, 0, 0, 0),
        (1, 1, 0, 1, 0),
        (2, 1, 1, 0, 1),
    ]
    assert (laid.addr, laid.port) == ("127.0.0.1", 4711)
    assert "2 ranks on node-a, 1 on node-b" in laid.reason
    shown = assignment(run.state, run.head)
    assert shown.want == "train"
    assert shown.layout == laid.layout
    assert shown.rendezvous is not None
    assert shown.rendezvous.port == 4711
    assert status(run.state, run.head, AT).waiting == "the start of rank 0, rank 1, rank 2"


def test_given_a_runner_that_is_ready_before_its_place_is_known_then_it_counts_all_the_same() -> None:
    early, late = Run(), Run()
    early.says(early.ready())
    early.says(early.placed())
    late.says(late.placed())
    late.says(late.ready())
    assert early.group.layout == late.group.layout != ()


def test_given_a_layout_when_one_runner_of_two_is_ready_then_the_other_is_waited_for() -> None:
    run = Run(nodes=("node-a", "node-b")).places()
    run.says(run.ready("node-a"))
    assert run.group.layout == ()
    assert status(run.state, run.head, AT).waiting == "the runner on node-b"


def test_given_a_layout_when_all_ranks_have_started_then_the_run_is_running() -> None:
    run = Run(timeouts=Timeouts(import_timeout_s=77.0)).lays_out()
    assert run.wake_at == pytest.approx(run.t + 77.0)
    run.says(run.started(0))
    assert run.name == "scheduling"
    run.says(run.started(1))
    assert run.path == ["scheduling>running"]
    assert run.the(StateChanged).reason == "2 ranks in user code (attempt 1)"
    assert run.wake_at is None
    shown = status(run.state, run.head, AT)
    assert (shown.state, shown.waiting) == ("running", None)
    assert shown.since == "2026-11-30T05:48:28.500000Z"
    assert [rank.phase for rank in shown.ranks] == ["running", "running"]


def test_given_a_function_that_returned_before_its_start_was_folded_then_one_entry_goes_all_the_way() -> None:
    run = Run(1).lays_out()
    run.says(run.started(0), run.returned(0), run.exited(0, 0), run.released())
    assert run.path == ["scheduling>running", "running>shutting_down", "shutting_down>finished"]


# --- what can go wrong before user code


def test_given_places_when_no_runner_is_ready_in_time_then_the_group_is_placed_anew_after_the_back_off() -> None:
    run = Run(timeouts=Timeouts(start_timeout_s=20.0)).places().waits(20.0)
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.budget, decided.spent, decided.limit) == ("retry", "startup", 1, -1)
    assert decided.failure.kind == "start_timeout"
    assert decided.failure.node == "local"
    assert "no runner on local within timeouts.start_timeout_s (20 s)" in decided.reason
    assert "startup failure 1 (no limit); starting again on new places in 1 s at the earliest" in decided.reason
    assert run.path == ["scheduling>rescheduling"]
    assert assignment(run.state, run.head).want == "stop"
    run.says(run.released())
    assert run.name == "rescheduling"
    run.waits(1.0)
    assert run.path == ["rescheduling>scheduling"]
    assert run.the(AttemptStarted).attempt == 2
    assert assignment(run.state, run.head).want == "place"


def test_given_a_layout_when_a_rank_does_not_start_in_time_then_it_is_named() -> None:
    run = Run(timeouts=Timeouts(import_timeout_s=60.0)).lays_out()
    run.says(run.started(0)).waits(60.0)
    assert "rank 1 on local did not start within timeouts.import_timeout_s (60 s)" in run.the(FailureDecided).reason
    assert run.name == "rescheduling"


def test_given_a_due_timer_when_the_last_rank_starts_in_the_same_entry_then_the_fact_wins() -> None:
    run = Run(1, timeouts=Timeouts(import_timeout_s=60.0)).lays_out()
    run.says(run.started(0), after_s=60.0)
    assert run.name == "running"


def test_given_start_up_failures_in_a_row_then_the_back_off_doubles_to_a_minute_and_a_report_forgets_them() -> None:
    run = Run(1)
    waits: list[float] = []
    for _ in range(8):
        run.places()
        run.says(run.runner_lost())
        phase = run.state.phase
        assert isinstance(phase, Rescheduling)
        waits.append(phase.not_before_t - phase.since_t)
        run.says(run.released()).waits(60.0)
        assert run.name == "scheduling"
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])
    run.running()
    assert run.state.startup_streak == 8
    run.says(run.reported(0, 0))
    assert run.state.startup_streak == 0
    assert run.state.budgets["startup"].spent == 8


def failed_to_meet(run: Run) -> float:
    """Let rank 0 fail to meet the others, in user code as it seems; the time until the next attempt."""
    run.running()
    assert run.name == "running"
    run.says(run.failed(0, "nobody there", kind="rendezvous"))
    phase = run.state.phase
    assert isinstance(phase, Restarting | Rescheduling)
    wait_s = phase.not_before_t - phase.since_t
    for rank in run.group.ranks:
        run.says(run.exited(rank.rank, asked=rank.rank != 0))
    run.says(run.released()).waits(60.0)
    return wait_s


def test_given_ranks_that_never_meet_when_they_are_started_again_then_the_back_off_doubles() -> None:
    run = Run(2)
    assert [failed_to_meet(run) for _ in range(8)] == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])


def test_given_ranks_that_did_not_meet_when_one_returns_or_fails_otherwise_then_that_is_forgotten() -> None:
    run = Run(2)
    assert [failed_to_meet(run), failed_to_meet(run)] == [1, 2]
    run.running()
    run.says(run.returned(1))
    assert run.state.startup_streak == 0
    raising = Run(2, failure=FailureConfig(max_failures=1))
    assert [failed_to_meet(raising), failed_to_meet(raising)] == [1, 2]
    raising.running()
    raising.says(raising.failed(0))
    assert raising.state.startup_streak == 0


def test_given_a_limited_startup_budget_when_it_is_spent_then_the_run_ends() -> None:
    run = Run(1, failure=FailureConfig(controller_failure_limit=1)).places()
    run.says(run.runner_lost()).says(run.released()).waits(1.0).places()
    run.says(run.runner_lost())
    assert run.the(FailureDecided).decision == "raise"
    assert "startup failure 2, and failure.controller_failure_limit allows 1" in run.the(FailureDecided).reason
    assert run.path == ["scheduling>shutting_down"]
    assert run.state.budgets["startup"].spent == 1


def test_given_a_demand_the_pool_can_never_meet_then_the_run_ends_without_a_retry() -> None:
    run = Run(64)
    run.says(run.placement_failed(never=True, reason="64 slots needed, pool local has 4 in all"))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.budget) == ("raise", None)
    assert "64 slots needed, pool local has 4 in all; never retried; the run ends" in decided.reason
    run.says(run.released())
    assert run.name == "errored"


@pytest.mark.parametrize(
    ("verdict", "kind", "type_"),
    [("late", "start_timeout", "StartTimeout"), ("failed", "placement", "PlacementFailed")],
)
def test_given_places_that_were_not_to_be_had_this_time_then_that_is_a_start_up_failure_and_tried_again(
    verdict: Literal["late", "failed"], kind: str, type_: str
) -> None:
    run = Run(2)
    reason = "0 of 1 slices had a head in time"
    run.says(replace(run.placement_failed(reason=reason), verdict=verdict))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.budget) == ("retry", "startup")
    assert (decided.failure.kind, decided.failure.error.type) == (kind, type_)
    assert reason in decided.reason
    assert run.name == "rescheduling"
    assert assignment(run.state, run.head).want == "stop"
    run.says(run.released()).waits(1.0)
    assert (run.name, run.state.attempt) == ("scheduling", 2)


def test_given_a_pool_that_places_less_than_was_asked_for_then_that_is_a_start_up_failure() -> None:
    run = Run(2)
    run.says(run.placed(1))
    assert "the pool placed 1 of 2 ranks" in run.the(FailureDecided).reason
    assert run.the(FailureDecided).budget == "startup"


def test_given_code_that_cannot_be_loaded_then_the_run_ends_at_once_and_says_never_retried() -> None:
    run = Run(1, failure=FailureConfig(max_failures=5)).lays_out()
    run.says(run.failed(0, "No module named 'nosuch'", "load"))
    assert run.the(FailureDecided).decision == "raise"
    assert run.the(FailureDecided).reason == (
        "rank 0 failed: RuntimeError: No module named 'nosuch'; never retried; the run ends"
    )
    assert run.path == ["scheduling>shutting_down"]


def test_given_a_rank_that_raises_while_another_still_starts_then_it_restarts_on_the_same_places() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).lays_out()
    run.says(run.started(0), run.failed(0))
    assert run.the(FailureDecided).budget == "worker"
    assert run.path == ["scheduling>rescheduling", "rescheduling>scheduling"]
    assert run.the(AttemptStarted).kept


def test_given_a_runner_lost_after_its_ranks_started_in_the_same_entry_then_the_run_had_been_running() -> None:
    run = Run(1).lays_out()
    run.says(run.started(0), run.runner_lost())
    assert run.path == ["scheduling>running", "running>shutting_down"]
    assert run.the(FailureDecided).budget == "worker"


def test_given_a_group_let_go_while_it_was_being_started_then_its_runners_are_lost() -> None:
    run = Run(1).lays_out()
    run.says(run.released())
    assert run.the(FailureDecided).failure.error.type == "GroupLost"
    assert run.name == "rescheduling"


def test_given_a_release_before_any_place_then_nothing_failed_and_places_may_still_come() -> None:
    run = Run(1)
    run.says(run.released())
    assert run.name == "scheduling"
    run.running()
    assert run.name == "running"


def test_given_second_places_before_the_layout_then_the_newer_count() -> None:
    run = Run(2, nodes=("node-a", "node-b")).says()
    run.says(run.placed(1, 1))
    run.says(run.placed(2))
    run.says(run.ready("node-a"))
    assert {rank.node for rank in run.group.ranks} == {"node-a"}
    before = run.group.places
    run.says(run.placed(1, 1))
    assert run.group.places == before


def test_given_a_new_process_of_a_runner_before_the_layout_then_it_must_be_ready_itself() -> None:
    run = Run(2, nodes=("node-a", "node-b")).places()
    run.says(run.ready("node-a"))
    run.join("node-a", boot="b2")
    run.says(run.ready("node-b"))
    assert run.group.layout == ()
    run.says(run.ready("node-a"))
    assert run.group.layout != ()


def test_given_a_ready_runner_that_was_lost_in_the_same_entry_then_the_order_does_not_matter() -> None:
    one, other = Run(1).places(), Run(1).places()
    one.says(one.ready(), one.runner_lost())
    other.says(other.runner_lost(), other.ready())
    assert one.group.places == other.group.places
    assert one.name == other.name == "rescheduling"


def test_given_more_slots_than_ranks_then_the_ranks_fill_them_in_order() -> None:
    run = Run(2, nodes=("node-a", "node-b"))
    run.says(run.placed(2, 2))
    run.says(run.ready("node-a"), run.ready("node-b"))
    assert [rank.node for rank in run.group.ranks] == ["node-a", "node-a"]
    assert run.group.places[0].slots == PlaceOffer(node="node-a", slots=2).slots


def test_given_scheduling_then_its_state_carries_size_and_deadline() -> None:
    run = Run(3)
    assert isinstance(run.state.phase, Scheduling)
    assert (run.state.phase.num_workers, run.state.phase.deadline_t) == (3, None)
