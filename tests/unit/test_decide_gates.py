"""Gates: every hook with every outcome, row by row; raising and silent ones alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.gating import follow
from runfold.controller.status import status
from runfold.events.base import Cause, Json
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.gates import GATES
from runfold.events.hooks import HookDue, Hooks
from runfold.events.requests import AbortRun
from runfold.events.state import Errored
from runfold.events.tasks import HOOK, OpenTask, Task
from runfold.events.transitions import AttemptStarted, FailureDecided, GroupLaidOut, StateChanged, TaskOrdered, Warned
from support.runs import AT, POOL, Run

Mode = Literal["fail", "warn"]
How = Literal["raises", "hangs"]
RETRIES = FailureConfig(max_failures=2)
TIMEOUTS = Timeouts(hook_timeout_s=10.0)


def gated(*hooks: str, mode: Mode = "fail", workers: int = 2) -> Run:
    """A run whose hooks are gates; of several replica groups if they are about those."""
    size = 1 if any("replica" in hook for hook in hooks) else None
    gates = dict.fromkeys(hooks, mode)
    return Run(workers, gates=gates, failure=RETRIES, timeouts=TIMEOUTS, replica_size=size)


def question(run: Run, hook: str) -> Task:
    """The open question to a gate."""
    found = [one.task for one in run.state.tasks if one.task.arguments.get("hook") == hook]
    assert len(found) == 1, f"{hook}: {[one.task for one in run.state.tasks]}"
    return found[0]


def answers(run: Run, hook: str, value: Json = None) -> Run:
    return run.says(run.task_ended(question(run, hook).id, value=value, node=POOL))


def fails(run: Run, hook: str, how: How = "raises") -> Run:
    """Let the gate raise, or let its time be over."""
    task = question(run, hook)
    if how == "hangs":
        assert task.deadline_t is not None
        return run.waits(task.deadline_t - run.t + 0.001)
    return run.says(run.task_ended(task.id, "failed", why="no", node=POOL))


def answer_all(run: Run) -> Run:
    """Answer whatever is asked until nothing is."""
    while open_ := [one.task for one in run.state.tasks if one.task.kind == HOOK and one.end is None]:
        run.says(*(run.task_ended(task.id, node=POOL) for task in open_))
    return run


# --- what is waited for


@pytest.mark.parametrize("hook", ["before_controller_execute_resize_decision", "on_controller_start_worker_group"])
@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_gate_before_an_attempt_that_fails_ends_the_run(hook: str, how: How) -> None:
    run = gated(hook)
    assert (run.name, run.state.attempt) == ("initializing", 0)
    assert [(one.kind, one.source) for one in assignment(run.state, run.head).tasks] == [(HOOK, POOL)]
    fails(run, hook, how)
    assert run.name == "errored"
    phase = run.state.phase
    assert isinstance(phase, Errored)
    assert phase.failure is not None
    assert phase.failure.kind == "controller"
    assert hook in phase.reason


def test_both_gates_before_an_attempt_are_asked_one_after_the_other_and_the_selector_is_kept() -> None:
    run = gated("before_controller_execute_resize_decision", "on_controller_start_worker_group")
    asked = question(run, "before_controller_execute_resize_decision")
    assert asked.arguments["arguments"] == {"attempt": 1, "num_workers": 2, "decision": "resize"}
    answers(run, "before_controller_execute_resize_decision")
    answers(run, "on_controller_start_worker_group", {"zone": "b", "n": 3})
    assert run.the(AttemptStarted).label_selector == {"zone": "b"}
    assert assignment(run.state, run.head).label_selector == {"zone": "b"}
    assert (run.name, run.state.hooks.answers) == ("scheduling", {})


def test_a_gate_before_an_attempt_waits_for_a_supervisor() -> None:
    run = Run(2, gates={"on_controller_start_worker_group": "fail"}, joined=False)
    assert (run.name, run.state.tasks) == ("initializing", ())
    run.join(POOL)
    assert question(run, "on_controller_start_worker_group").deadline_t is not None


def test_a_gate_before_a_restart_keeps_the_places_while_it_is_asked() -> None:
    run = gated("before_controller_execute_resize_decision")
    answers(run, "before_controller_execute_resize_decision")
    run.running()
    run.says(run.failed(0))
    assert run.name == "restarting"
    assert assignment(run.state, run.head).want == "train"
    answers(run, "before_controller_execute_resize_decision")
    assert run.the(AttemptStarted).kept


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_failing_gate_before_a_failure_decision_ends_the_run_with_the_first_error(how: How) -> None:
    run = gated("before_controller_execute_failure_decision").running()
    run.says(run.failed(1, "boom"))
    assert run.name == "running"
    assert question(run, "before_controller_execute_failure_decision").arguments["arguments"] == {
        "attempt": 1,
        "decision": "retry",
        "error": "RuntimeError: boom",
        "rank": 1,
    }
    fails(run, "before_controller_execute_failure_decision", how)
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.failure.error.message, decided.spent) == ("raise", "boom", 0)
    assert "before_controller_execute_failure_decision" in decided.reason
    run.says(run.released())
    assert run.name == "errored"


def test_an_answered_gate_before_a_failure_decision_lets_the_policy_decide_each_time() -> None:
    run = gated("before_controller_execute_failure_decision").running()
    run.says(run.failed(1))
    answers(run, "before_controller_execute_failure_decision")
    assert run.the(FailureDecided).decision == "retry"
    run.starts()
    run.says(run.failed(0))
    answers(run, "before_controller_execute_failure_decision")
    assert run.state.budgets["worker"].spent == 2


def test_a_gate_before_the_context_gives_each_rank_its_arguments() -> None:
    run = gated("before_init_train_context").lays_out()
    workers = question(run, "before_init_train_context").arguments["arguments"]
    assert isinstance(workers, dict)
    assert workers["workers"] == [
        {"world_rank": rank, "local_rank": rank, "node_rank": 0, "node": "local"} for rank in range(2)
    ]
    answers(run, "before_init_train_context", {"shard": ["a", "b"], "wrong": 3})
    assert run.the(GroupLaidOut).arguments == {"shard": ["a", "b"]}
    work = assignment(run.state, run.head).job
    assert work is not None
    assert work.arguments == {"shard": ["a", "b"]}
    assert run.starts().name == "running"


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_failing_gate_before_the_context_ends_the_run(how: How) -> None:
    run = fails(gated("before_init_train_context").lays_out(), "before_init_train_context", how)
    assert run.name == "shutting_down"
    run.says(run.released())
    assert run.name == "errored"


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_failing_gate_before_the_shutdown_makes_an_error_of_a_success_and_says_that_training_finished(
    how: How,
) -> None:
    run = gated("before_controller_shutdown").running().finishing()
    run.says(run.released())
    assert run.name == "shutting_down"
    fails(run, "before_controller_shutdown", how)
    assert run.name == "errored"
    assert run.state.phase.reason.startswith("training finished")
    assert run.state.return_value == 7


def test_a_failing_gate_before_the_shutdown_of_a_failed_run_leaves_its_error() -> None:
    run = Run(2, gates={"before_controller_shutdown": "fail"}).running()
    run.says(run.failed(0, "boom"))
    run.says(run.released())
    fails(run, "before_controller_shutdown")
    assert run.name == "errored"
    assert run.state.failure is not None
    assert run.state.failure.error.message == "boom"
    assert run.the(Warned).about == "gate:before_controller_shutdown"


def test_an_answered_gate_before_the_shutdown_lets_the_run_finish() -> None:
    run = gated("before_controller_shutdown").running().finishing()
    run.says(run.released())
    assert answers(run, "before_controller_shutdown").name == "finished"


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_failing_gate_before_an_abort_is_only_told_and_waited_for_a_second_at_most(how: How) -> None:
    run = gated("before_controller_abort", "before_controller_shutdown").running()
    run.says(AbortRun(id="a", by="ann"))
    assert run.name == "running"
    task = question(run, "before_controller_abort")
    assert task.deadline_t == pytest.approx(run.t + 1.0)
    fails(run, "before_controller_abort", how)
    assert run.name == "shutting_down"
    run.says(run.released())
    assert run.name == "aborted", "an abort asks no other gate"


# --- what is not waited for

MOMENTS: dict[str, Callable[[Run], object]] = {
    "after_controller_start": lambda run: run,
    "after_controller_state_update": lambda run: run,
    "before_worker_group_start": lambda run: run,
    "after_worker_group_start": lambda run: run.lays_out(),
    "after_worker_group_training_start": lambda run: run.running(),
    "after_report": lambda run: run.running().says(run.reported(0, 0)),
    "after_exception": lambda run: run.running().says(run.failed(0)),
    "before_replica_group_shutdown": lambda run: run.running().says(run.failed(1)),
    "after_replica_group_start": lambda run: run.running().says(run.failed(1)),
}
"""What has to happen before each of these is asked, in a run that goes on."""


@pytest.mark.parametrize("hook", MOMENTS)
@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_failing_gate_that_nobody_waits_for_ends_the_run_as_errored(hook: str, how: How) -> None:
    run = gated(hook)
    MOMENTS[hook](run)
    fails(run, hook, how)
    assert run.name == "shutting_down"
    run.says(run.released())
    answer_all(run)
    assert run.name == "errored"
    assert hook in run.state.phase.reason


@pytest.mark.parametrize("hook", MOMENTS)
def test_a_gate_that_is_to_warn_only_warns(hook: str) -> None:
    run = gated(hook, mode="warn")
    MOMENTS[hook](run)
    name = run.name
    fails(run, hook)
    assert run.name == name
    assert run.the(Warned).about == f"gate:{hook}"
    assert hook in run.state.warnings[-1]


def test_replica_groups_are_asked_about_by_number_life_and_ranks() -> None:
    run = gated("before_replica_group_shutdown", "after_replica_group_start", workers=3).running()
    run.says(run.failed(1))
    asked = [question(run, hook).arguments["arguments"] for hook in run.state.job.hooks.gates]
    assert asked == [
        {"attempt": 1, "replica": 1, "life": 1, "ranks": [1]},
        {"attempt": 1, "replica": 1, "life": 2, "ranks": [1]},
    ]
    answer_all(run)
    assert run.name == "running"


def test_groups_that_go_are_asked_about_before_and_after() -> None:
    run = gated("before_worker_group_shutdown", "after_worker_group_shutdown").running().finishing()
    answers(run, "before_worker_group_shutdown")
    run.says(run.released())
    assert run.name == "shutting_down"
    assert answers(run, "after_worker_group_shutdown").name == "finished"


@pytest.mark.parametrize("hook", ["before_worker_group_shutdown", "after_worker_group_shutdown"])
def test_a_failing_gate_of_a_group_that_goes_makes_an_error_of_a_success(hook: str) -> None:
    run = gated(hook).running().finishing()
    if hook.startswith("after"):
        run.says(run.released())
    fails(run, hook)
    run.says(run.released())
    answer_all(run)
    assert run.name == "errored"


def test_an_abort_asks_about_the_group_and_waits_for_no_answer() -> None:
    run = gated("before_worker_group_abort", "after_worker_group_abort").running()
    run.says(AbortRun(id="a", by="ann"))
    assert question(run, "before_worker_group_abort").arguments["arguments"] == {"attempt": 1}
    run.says(run.released())
    assert run.name == "aborted"


def test_state_updates_are_asked_about_in_their_order() -> None:
    run = gated("after_controller_state_update")
    seen: list[Json] = []
    for moment in (run.lays_out, run.starts):
        while any(one.task.kind == HOOK for one in run.state.tasks):
            seen.append(question(run, "after_controller_state_update").arguments["arguments"])
            answers(run, "after_controller_state_update")
        moment()
    seen.append(question(run, "after_controller_state_update").arguments["arguments"])
    assert seen == [
        {"previous": "initializing", "current": "scheduling"},
        {"previous": "scheduling", "current": "running"},
    ]


def test_a_failing_state_update_gate_in_a_failed_run_only_warns() -> None:
    run = Run(2, gates={"after_controller_state_update": "fail"}).running()
    while run.state.hooks.due:
        answers(run, "after_controller_state_update")
    run.says(run.failed(0, "boom"))
    answers(run, "after_controller_state_update")
    fails(run, "after_controller_state_update")
    assert not run.none(Warned)
    assert run.state.failure is not None
    assert run.state.failure.error.message == "boom"


def test_reports_are_asked_about_the_newest_when_the_gate_is_free() -> None:
    run = gated("after_report").running()
    run.says(run.reported(0, 0), run.reported(0, 1))
    asked = question(run, "after_report").arguments["arguments"]
    assert isinstance(asked, dict)
    assert asked["reports"] == 2
    run.says(run.reported(0, 2))
    answers(run, "after_report")
    again = question(run, "after_report").arguments["arguments"]
    assert isinstance(again, dict)
    assert again["reports"] == 3


def test_a_question_to_an_unknown_gate_is_closed_with_a_warning() -> None:
    run = gated("after_report").running()
    task = Task(id="hook-9", kind=HOOK, arguments={"hook": "no_such_hook"})
    opened = OpenTask(task=task, cause=Cause(entry=0, input=0))
    run._state = replace(run.state, tasks=(opened,))  # what no rule orders
    fails(run, "no_such_hook")
    assert not run.none(Warned)
    assert run.name == "running"


def test_every_hook_that_can_be_a_gate_is_in_the_table() -> None:
    assert set(MOMENTS) < set(GATES)
    assert sum(kind == "waits" for kind in GATES.values()) == 6


def test_nothing_is_asked_without_a_supervisor() -> None:
    run = Run(2, gates={"after_controller_start": "fail"}, joined=False)
    assert run.state.hooks.due
    assert follow(run.state) == ()
    state = replace(run.state, hooks=Hooks(due=(HookDue(hook="after_report", cause=Cause(input=0)),)))
    assert follow(state) == ()


def test_a_failing_gate_while_the_run_is_asked_to_end_is_only_told() -> None:
    run = gated("before_controller_abort", "after_report").running()
    run.says(run.reported(0, 0))
    run.says(AbortRun(id="a", by="ann"))
    fails(run, "after_report")
    assert not run.none(Warned)
    assert run.none(StateChanged)
    assert run.none(TaskOrdered)


def test_places_that_are_kept_are_held_while_the_context_is_asked_for() -> None:
    run = answers(gated("before_init_train_context").lays_out(), "before_init_train_context").starts()
    run.says(run.failed(0))
    document = assignment(run.state, run.head)
    assert (run.name, document.want, document.kept) == ("scheduling", "place", True)
    answers(run, "before_init_train_context")
    assert assignment(run.state, run.head).want == "train"


def test_the_status_says_which_answer_is_waited_for() -> None:
    run = gated("on_controller_start_worker_group")
    assert status(run.state, run.head, AT).waiting == "the gate on_controller_start_worker_group"
    fails(run, "on_controller_start_worker_group")
    document = status(run.state, run.head, AT)
    assert document.error is not None
    assert document.error.kind == "controller"
    alone = Run(2, gates={"on_controller_start_worker_group": "fail"}, joined=False)
    assert "none has spoken" in str(status(alone.state, alone.head, AT).waiting)
