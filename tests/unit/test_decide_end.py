"""The end of a run: finished, failed or aborted; every end goes through SHUTTING_DOWN, and is final."""

import pytest

from runfold.controller.assignment import assignment
from runfold.controller.decide import decide
from runfold.controller.status import status
from runfold.events.base import Moment
from runfold.events.conclusions import ControllerStarted, TimerFired
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.edges import IllegalEdge
from runfold.events.entry import AnyInput
from runfold.events.evolve import evolve
from runfold.events.observe import observe, observe_all, verdict
from runfold.events.requests import AbortRun
from runfold.events.state import Errored, ShuttingDown
from runfold.events.transitions import ControllerChanged, LogRestored, RequestAccepted, StateChanged
from support.runs import AT, DECIDER, Run

ABORT = AbortRun(id="r1", by="ada", reason="wrong data")


def test_given_a_running_group_when_every_rank_returned_then_it_is_released_and_the_run_is_finished() -> None:
    run = Run(2, timeouts=Timeouts(shutdown_deadline_s=12.0)).running()
    run.says(run.reported(0, 0, loss=0.5), run.reported(1, 0))
    run.says(run.returned(0, 42))
    assert run.name == "running"
    run.says(run.returned(1, 43))
    assert run.path == ["running>shutting_down"]
    assert run.wake_at == pytest.approx(run.t + 12.0)
    order = assignment(run.state, run.head)
    assert (order.want, order.job) == ("stop", None)
    assert order.stop is not None
    assert (order.stop.reason, order.stop.grace_s) == ("every rank returned", Timeouts().stop_grace_s)
    run.says(run.exited(0, 0), run.exited(1, 0))
    assert run.said == ()
    run.says(run.released())
    assert run.path == ["shutting_down>finished"]
    shown = status(run.state, run.head, AT)
    assert (shown.state, shown.return_value, shown.metrics) == ("finished", 42, {"loss": 0.5})
    assert shown.terminal
    assert run.wake_at is None
    assert assignment(run.state, run.head).want == "gone"


def test_given_one_rank_when_it_returned_then_the_reason_is_about_one() -> None:
    run = Run(1).running().finishing()
    assert run.the(StateChanged).reason == "the rank returned"


def test_given_a_finished_training_when_the_teardown_fails_then_it_ends_errored_and_says_only_that_failed() -> None:
    run = Run(1, timeouts=Timeouts(shutdown_deadline_s=30.0)).running().finishing().waits(30.0)
    assert run.path == ["shutting_down>errored"]
    assert run.the(StateChanged).reason == (
        "training finished (the rank returned); only the teardown failed: "
        "pool-local did not release the group within 30.0 s"
    )
    assert run.state.phase == Errored(
        since_t=run.t, reason=run.state.phase.reason, cause=run.state.phase.cause, failure=None
    )
    assert run.state.return_value == 7
    assert assignment(run.state, run.head).want == "gone"


def test_given_a_failed_run_when_the_teardown_fails_too_then_the_training_error_stays_the_error() -> None:
    run = Run(1).running()
    run.says(run.failed(0)).waits(30.0)
    assert run.name == "errored"
    assert "boom" in run.state.phase.reason
    assert "pool-local did not release the group" in run.state.phase.reason
    assert isinstance(run.state.phase, Errored)
    assert run.state.phase.failure is not None


def test_given_a_release_when_the_deadline_is_due_in_the_same_entry_then_the_teardown_was_in_time() -> None:
    run = Run(1).running().finishing()
    run.says(run.released(), after_s=30.0)
    assert run.name == "finished"


# --- abort


def test_given_a_running_group_when_it_is_aborted_then_who_and_why_stand_in_the_log_and_it_is_released() -> None:
    run = Run(2).running().says(ABORT)
    accepted = run.the(RequestAccepted)
    assert (accepted.id, accepted.request, accepted.by) == ("r1", "abort_run", "ada")
    assert accepted.reason == "aborted by ada: wrong data"
    assert run.path == ["running>shutting_down"]
    assert run.the(StateChanged).cause.input == 0
    run.says(run.exited(0, signal=15, asked=True), run.exited(1, signal=15, asked=True), run.released())
    assert run.path == ["shutting_down>aborted"]
    assert run.state.phase.reason == "aborted by ada: wrong data"
    assert status(run.state, run.head, AT).requests == {"r1": "accepted"}
    assert status(run.state, run.head, AT).error is None


def test_given_an_abort_when_the_teardown_fails_then_the_run_is_aborted_all_the_same() -> None:
    run = Run(1).running().says(ABORT).waits(30.0)
    assert run.name == "aborted"
    assert "did not release" in run.state.phase.reason


def test_given_nobody_to_hold_anything_when_aborted_then_it_ends_in_the_same_entry() -> None:
    run = Run(joined=False).says(AbortRun(id="r1"))
    assert run.path == ["scheduling>shutting_down", "shutting_down>aborted"]
    assert run.state.phase.reason == "aborted by somebody"


def test_given_a_queued_run_when_aborted_then_the_supervisor_is_waited_for() -> None:
    run = Run()
    run.says(run.queued()).says(ABORT)
    assert run.name == "shutting_down"
    run.says(run.placed())
    assert run.name == "shutting_down"
    run.says(run.released())
    assert run.name == "aborted"


@pytest.mark.parametrize("released", [True, False])
def test_given_a_run_in_its_back_off_when_aborted_then_it_does_not_start_again(released: bool) -> None:
    run = Run(1).places()
    run.says(run.runner_lost())
    assert run.name == "rescheduling"
    if released:
        run.says(run.released())
    run.says(ABORT)
    assert run.path[0] == "rescheduling>shutting_down"
    assert run.name == ("aborted" if released else "shutting_down")


def test_given_the_same_request_again_then_it_is_not_answered_twice() -> None:
    run = Run(1).running().says(ABORT, ABORT)
    assert len([said for said in run.said if isinstance(said, RequestAccepted)]) == 1
    run.says(ABORT)
    assert run.said == ()


def test_given_an_abort_when_another_asks_too_then_the_first_stays_the_reason() -> None:
    run = Run(1).running().says(ABORT)
    deadline_t = run.wake_at
    run.says(AbortRun(id="r2", by="bob"))
    assert run.the(RequestAccepted).reason == "the run is being aborted already; bob asked too"
    assert run.path == []
    assert run.wake_at == deadline_t
    assert run.state.phase.reason == "aborted by ada: wrong data"


@pytest.mark.parametrize("end", ["finished", "errored"])
def test_given_a_run_that_ends_already_when_aborted_then_only_its_patience_gets_shorter(end: str) -> None:
    run = Run(1, timeouts=Timeouts(stop_grace_s=4.0)).running()
    run.says(run.returned(0) if end == "finished" else run.failed(0))
    run.says(ABORT)
    assert run.path == ["shutting_down>shutting_down"]
    assert f"the run ends as {end} already; ada asked to abort it" in run.the(RequestAccepted).reason
    assert run.wake_at == pytest.approx(run.t + 4.0)
    order = assignment(run.state, run.head).stop
    assert order is not None
    assert order.grace_s == 0.0
    since_t = run.state.phase.since_t
    run.says(AbortRun(id="r2"))
    assert run.path == []
    assert run.state.phase.since_t == since_t
    run.says(run.released())
    assert run.name == end


def test_given_little_time_left_when_a_finished_run_is_aborted_then_the_deadline_stays() -> None:
    run = Run(1, timeouts=Timeouts(stop_grace_s=5.0, shutdown_deadline_s=30.0)).running().finishing()
    deadline_t = run.wake_at
    run.says(ABORT, after_s=28.0)
    assert run.wake_at == deadline_t


# --- terminal is final


@pytest.fixture
def finished() -> Run:
    run = Run(1).running().finishing()
    return run.says(run.released())


def test_given_an_end_when_anything_is_said_then_nothing_changes(finished: Run) -> None:
    before = finished.state
    late: list[AnyInput] = [
        finished.failed(0),
        finished.runner_lost(),
        AbortRun(id="r9"),
        ControllerStarted(controller="other", decider=DECIDER),
        TimerFired(timer="shutdown", deadline_t=1.0),
    ]
    after = observe_all(before, late, n=before.n + 1, t=99.0)
    assert (after.n, after.t) == (before.n + 1, 99.0)
    assert after.phase == before.phase
    assert after.dropped == before.dropped
    assert observe(before, late[0], Moment(n=before.n + 1, t=99.0)) == after
    assert decide(before, late, 99.0).transitions == ()


def test_given_an_end_then_no_transition_may_follow_but_a_restored_log(finished: Run) -> None:
    at = Moment(n=finished.state.n + 1, t=finished.t)
    cause = finished.state.phase.cause
    change = ControllerChanged(epoch=2, controller="other", decider=DECIDER, cause=cause, reason="x")
    with pytest.raises(IllegalEdge, match="a terminal state is final"):
        evolve(finished.state, change, at)
    restored = LogRestored(generation=2, source="file:///archive", cause=cause, reason="restored")
    assert evolve(finished.state, restored, at) == finished.state


# --- take-over


def test_given_a_run_when_another_controller_has_it_then_the_epoch_counts_up_and_all_goes_on() -> None:
    run = Run(2, failure=FailureConfig(max_failures=2)).running()
    run.says(run.failed(0)).starts()
    run.says(ControllerStarted(controller="ctl-b", decider=DECIDER))
    changed = run.the(ControllerChanged)
    assert (changed.epoch, changed.controller) == (2, "ctl-b")
    assert changed.reason == "ctl-b decides from here on; ctl decided before"
    assert run.name == "running"
    run.says(run.failed(0))
    assert "worker failure 2 of 2" in run.state.phase.reason or run.state.budgets["worker"].spent == 2
    assert assignment(run.state, run.head).epoch == 2


def test_given_a_stale_timer_then_it_does_nothing() -> None:
    run = Run(1).running().finishing()
    assert isinstance(run.state.phase, ShuttingDown)
    run.says(TimerFired(timer="shutdown", deadline_t=run.state.phase.deadline_t - 1.0))
    run.says(TimerFired(timer="start", deadline_t=run.state.phase.deadline_t))
    assert run.said == ()
    assert run.state.fired == ()


def test_facts_of_a_run_that_is_over_are_stale(finished: Run) -> None:
    ended = finished.state
    assert verdict(ended, finished.reported(0, 9)) == "stale"
