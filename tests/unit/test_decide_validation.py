"""Validations as the controller sees them: ordered, judged, ranked anew, awaited at the end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.controller.validating import validate
from runfold.events.base import Cause, Json, Moment
from runfold.events.checkpoints import ValidationWish
from runfold.events.config import CheckpointConfig, Timeouts, ValidationSpec
from runfold.events.evolve import evolve
from runfold.events.requests import AbortRun
from runfold.events.tasks import DELETE, VALIDATION
from runfold.events.transitions import CheckpointCommitted, CheckpointValidated, TaskOrdered
from support.runs import AT, POOL, Run

SPEC = ValidationSpec(entrypoint="digits:validate", arguments={"limit": 5}, timeout_s=20.0)
WISH = ValidationWish()


def validating(*, spec: ValidationSpec | None = SPEC, keep: int | None = None, timeouts: Timeouts | None = None) -> Run:
    """A run on one rank that validates its checkpoints, scored by their accuracy."""
    checkpoint = CheckpointConfig(num_to_keep=keep, checkpoint_score_attribute="accuracy")
    return Run(1, validation=spec, checkpoint=checkpoint, timeouts=timeouts).running()


def commits(run: Run, index: int, wish: ValidationWish | None = WISH, **metrics: Json) -> Run:
    """Let a checkpoint be reported, with the wish to validate it, and sealed."""
    run.says(replace(run.shard(0, index), validation=wish))
    return run.says(run.sealed(f"checkpoint_{index:06d}_1", metrics or {"accuracy": 0.5}))


def ends(run: Run, index: int, value: Json = None, *, why: str = "") -> Run:
    """Let the validation of a checkpoint end."""
    task = f"validation:checkpoint_{index:06d}_1"
    return run.says(run.task_ended(task, "failed" if why else "done", value=value, why=why, node=POOL))


def under_way(run: Run) -> list[str]:
    return [one.task.id for one in run.state.tasks if one.task.kind == VALIDATION]


def statuses(run: Run) -> dict[int, str]:
    return {one.index: one.status for one in run.state.checkpoints.kept}


def test_given_a_commit_with_a_wish_then_the_supervisor_is_to_validate_it_with_the_run_s_arguments() -> None:
    run = commits(validating(), 0)
    assert run.the(CheckpointCommitted).validation == WISH
    task = run.the(TaskOrdered).task
    assert task.arguments == {"name": "checkpoint_000000_1", "arguments": {"limit": 5}}
    assert task.deadline_t == pytest.approx(run.t + 20.0)
    assert [(one.kind, one.source) for one in assignment(run.state, run.head).tasks] == [(VALIDATION, POOL)]
    assert statuses(run) == {0: "pending"}


def test_given_arguments_of_a_report_then_they_win_and_its_limit_is_taken_as_it_is() -> None:
    run = commits(validating(), 0, ValidationWish(own=True, arguments={"limit": 9, "more": 1}))
    task = run.the(TaskOrdered).task
    assert (task.arguments["arguments"], task.deadline_t) == ({"limit": 9, "more": 1}, None)


def test_given_no_wish_or_no_validation_configured_then_nothing_is_validated() -> None:
    assert commits(validating(), 0, None).none(CheckpointValidated)
    run = commits(validating(spec=None), 0)
    assert (statuses(run), under_way(run)) == ({0: "committed"}, [])


def test_given_more_than_max_concurrent_then_they_wait_in_the_order_of_their_reports() -> None:
    run = validating()
    for index in range(3):
        commits(run, index)
    assert under_way(run) == ["validation:checkpoint_000000_1"]
    ends(run, 0, {"accuracy": 0.7})
    assert under_way(run) == ["validation:checkpoint_000001_1"]
    several = validating(spec=ValidationSpec(entrypoint="digits:validate", max_concurrent=2))
    for index in range(3):
        commits(several, index)
    assert under_way(several) == ["validation:checkpoint_000000_1", "validation:checkpoint_000001_1"]


def test_given_results_then_the_checkpoints_are_ranked_anew_and_the_worst_goes() -> None:
    run = validating(keep=1)
    commits(run, 0, accuracy=0.9)
    commits(run, 1, accuracy=0.1)
    assert statuses(run) == {0: "pending", 1: "pending"}, "what is pending is kept"
    ends(run, 0, {"accuracy": 0.2})
    assert [one.index for one in run.state.checkpoints.kept] == [1, 0]
    ends(run, 1, {"accuracy": 0.8})
    assert statuses(run) == {1: "validated"}
    deleted = [one.task.arguments["names"] for one in run.state.tasks if one.task.kind == DELETE]
    assert deleted == [["checkpoint_000000_1"]]


def test_given_a_result_without_the_score_then_that_of_the_report_stands() -> None:
    run = ends(commits(validating(), 0, accuracy=0.9), 0, {"f1": 0.3})
    assert run.the(CheckpointValidated).score == pytest.approx(0.9)
    assert run.the(CheckpointValidated).metrics == {"f1": 0.3}


@pytest.mark.parametrize("value", [None, 3, "text", [1.0]])
def test_given_something_else_than_metrics_then_it_has_failed(value: Json) -> None:
    said = ends(commits(validating(), 0), 0, value).the(CheckpointValidated)
    assert said.outcome == "failed"
    assert said.score == pytest.approx(0.5)
    assert said.error is not None
    assert "no dict" in said.error.message


def test_given_a_failure_then_the_run_goes_on_and_the_status_says_so() -> None:
    run = ends(commits(validating(), 0), 0, why="ended by SIGSEGV")
    assert (run.name, statuses(run)) == ("running", {0: "failed"})
    assert "ended by SIGSEGV" in run.the(CheckpointValidated).reason


def test_given_no_result_in_time_then_it_has_timed_out() -> None:
    run = commits(validating(), 0).waits(20.1)
    assert (statuses(run), under_way(run)) == ({0: "timed_out"}, [])
    assert run.name == "running"


def test_given_a_finished_group_then_validations_are_awaited_without_a_group() -> None:
    run = commits(validating(spec=ValidationSpec(entrypoint="digits:validate")), 0).finishing()
    run.says(run.released())
    run.waits(1000.0)
    assert run.name == "shutting_down"
    assert status(run.state, run.head, AT).waiting == "1 validation"
    assert [one.source for one in assignment(run.state, run.head).tasks] == [POOL]
    assert assignment(run.state, run.head).job is not None
    ends(run, 0, {"accuracy": 0.7})
    assert (run.name, statuses(run)) == ("finished", {0: "validated"})


def test_given_what_a_late_result_makes_superfluous_then_it_is_deleted_before_the_end() -> None:
    run = validating(keep=1)
    commits(run, 0, None, accuracy=0.5)
    commits(run, 1, accuracy=0.1)
    run.finishing()
    run.says(run.released())
    ends(run, 1, {"accuracy": 0.9})
    assert run.name == "shutting_down"
    deletion = assignment(run.state, run.head).tasks
    assert [(one.kind, one.source) for one in deletion] == [(DELETE, POOL)]
    run.says(run.task_ended(deletion[0].id, node=POOL))
    assert run.name == "finished"


def test_given_final_wait_s_then_what_is_pending_times_out_and_the_run_ends() -> None:
    run = validating(spec=ValidationSpec(entrypoint="digits:validate"), timeouts=Timeouts(final_wait_s=5.0))
    commits(run, 0)
    commits(run, 1)
    run.finishing()
    run.says(run.released())
    assert run.name == "shutting_down"
    run.waits(5.1)
    assert (run.name, statuses(run)) == ("finished", {0: "timed_out", 1: "timed_out"})


def test_given_final_wait_s_over_before_the_release_then_the_group_is_waited_for_all_the_same() -> None:
    run = validating(spec=ValidationSpec(entrypoint="digits:validate"), timeouts=Timeouts(final_wait_s=1.0))
    commits(run, 0)
    run.finishing()
    run.waits(2.0)
    assert run.name == "shutting_down"
    run.says(run.released())
    assert run.name == "finished"


def test_given_an_abort_then_nothing_more_is_validated_and_it_is_not_waited_for() -> None:
    run = commits(validating(), 0)
    run.says(AbortRun(id="a", by="ann"))
    commits_none = under_way(run)
    run.says(run.released())
    assert (run.name, statuses(run), commits_none) == ("aborted", {0: "pending"}, ["validation:checkpoint_000000_1"])


def test_given_no_supervisor_then_a_validation_waits_for_one() -> None:
    run = commits(validating(), 0)
    sources = {name: source for name, source in run.state.sources.items() if name != POOL}
    assert under_way(run)
    assert validate(replace(run.state, sources=sources, tasks=())) == ()


def test_given_a_result_for_what_is_not_kept_then_nothing_is_ranked() -> None:
    run = commits(validating(), 0)
    said = CheckpointValidated(name="gone", outcome="validated", cause=Cause(input=0), reason="r")
    after = evolve(run.state, said, Moment(n=run.state.n, t=run.t))
    assert after.checkpoints == run.state.checkpoints
