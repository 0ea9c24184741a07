"""Beginning from a checkpoint: the next attempt's, and that of an earlier run in the same storage."""

from __future__ import annotations

import pytest

from runfold.controller.assignment import assignment
from runfold.events.base import Json
from runfold.events.config import CheckpointConfig, FailureConfig, Timeouts, ValidationSpec
from runfold.events.transitions import (
    CheckpointCommitted,
    FailureDecided,
    RunContinued,
    StateChanged,
    TaskClosed,
    TaskOrdered,
    Warned,
)
from support.runs import Run

FIRST = "checkpoint_000000_1"


def committed(run: Run, index: int = 0, **metrics: Json) -> Run:
    """Let every rank report files, and the checkpoint be sealed."""
    name = f"checkpoint_{run.state.checkpoints.base + index:06d}_{run.state.attempt}"
    run.says(*(run.shard(rank.rank, index) for rank in run.group.ranks))
    return run.says(run.sealed(name, metrics or None))


# --- restarts


def test_given_a_failure_right_after_a_report_then_the_next_attempt_waits_for_the_seal_and_begins_from_it() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    run.says(run.shard(0, 0), run.failed(0))
    told = assignment(run.state, run.head)
    assert (told.want, told.attempt) == ("train", 2)
    assert told.job is not None
    assert (told.job.waits, told.job.checkpoint, told.job.first_index) == (True, None, 1)
    assert [task.kind for task in told.tasks] == ["seal"]
    run.says(run.sealed(FIRST))
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert (told.job.waits, told.job.checkpoint) == (False, FIRST)
    assert "attempt 2 begins from it" in run.the(CheckpointCommitted).reason
    assert run.the(CheckpointCommitted).attempt == 1


def test_given_a_seal_that_fails_then_the_next_attempt_begins_from_the_one_before() -> None:
    run = committed(Run(1, failure=FailureConfig(max_failures=1)).running())
    run.says(run.shard(0, 1), run.failed(0))
    run.says(run.task_ended("seal:checkpoint_000001_1", "failed", why="gone"))
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert (told.job.waits, told.job.checkpoint, told.job.first_index) == (False, FIRST, 2)


def test_given_a_commit_then_the_attempt_that_runs_keeps_its_own_beginning() -> None:
    run = committed(Run(1).running())
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert told.job.checkpoint is None


def test_given_the_runner_is_lost_then_the_next_one_seals() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    run.says(run.shard(0, 0), run.runner_lost())
    assert run.name == "restarting"
    assert assignment(run.state, run.head).tasks[0].source == ""
    run.says(run.released())
    run.lays_out()
    told = assignment(run.state, run.head)
    assert told.tasks[0].source == "local"
    assert told.job is not None
    assert told.job.waits
    run.says(run.sealed(FIRST))
    assert run.group.start == FIRST


def test_given_the_runner_is_lost_when_all_ranks_have_returned_then_the_supervisor_seals() -> None:
    run = Run(1).running()
    run.says(run.shard(0, 0), run.returned(0))
    assert [task.source for task in assignment(run.state, run.head).tasks] == ["local"]
    run.says(run.runner_lost())
    assert run.name == "running"
    assert [task.source for task in assignment(run.state, run.head).tasks] == ["pool-local"]
    run.says(run.sealed(FIRST, node="pool-local"))
    assert run.the(CheckpointCommitted).name == FIRST
    assert run.the(StateChanged).next == "finished"


def test_given_an_attempt_that_ends_then_what_was_not_whole_is_deleted() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.shard(0, 0))
    run.says(run.failed(1))
    task = run.the(TaskOrdered).task
    assert (task.kind, task.arguments["names"], task.arguments["sealed"]) == ("delete", [FIRST], False)
    assert run.state.checkpoints.gathering == ()
    run.says(run.task_ended(task.id))
    assert run.the(TaskClosed).reason == f"deleted: {FIRST}"


def test_given_a_late_report_of_an_ended_attempt_then_its_files_are_deleted() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    late = run.shard(0, 0)
    run.numbers["local"] -= 1
    run.says(run.failed(1))
    run.says(run.number(late))
    assert run.the(TaskOrdered).task.arguments["names"] == [FIRST]
    run.says(run.task_ended("delete-1", "failed", why="no rights"))
    assert run.the(TaskClosed).reason == f"not deleted: {FIRST}: StorageError: no rights"


def test_given_more_than_can_wait_then_the_oldest_is_given_up() -> None:
    run = Run(2).running()
    run.says(*(run.shard(0, index) for index in range(66)))
    assert len(run.state.checkpoints.gathering) == 64
    assert run.the(TaskOrdered).task.arguments["names"] == [FIRST, "checkpoint_000001_1"]


# --- an earlier run


def opened(**given: Json) -> Run:
    """A run whose storage was named, and what is found there."""
    run = Run(1, storage="s3://bucket/runs", checkpoint=CheckpointConfig(checkpoint_score_attribute="loss"))
    run.lays_out()
    assert run.the(TaskOrdered).task.kind == "open"
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert told.job.waits
    return run.says(run.task_ended("open", value=given))


def old(name: str, index: int, **more: Json) -> dict[str, Json]:
    return {"name": name, "index": index, "attempt": 1, **more}


def test_given_an_earlier_run_then_this_one_continues_it_and_says_so() -> None:
    run = opened(run="digits-1", checkpoints=[old("a", 3, score=2.0), old("b", 7, shards=2)])
    said = run.the(RunContinued)
    assert (said.run, said.checkpoint, said.first_index) == ("digits-1", "b", 8)
    assert "run digits-1 was here before: this run continues it from b" in said.reason
    assert [(one.name, one.score) for one in run.state.checkpoints.kept] == [("b", None), ("a", 2.0)]
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert (told.job.waits, told.job.checkpoint, told.job.first_index) == (False, "b", 8)
    run.starts()
    run.says(run.shard(0, 0))
    assert run.the(TaskOrdered).task.arguments["name"] == "checkpoint_000008_1"


def test_given_one_that_left_nothing_then_the_index_begins_at_0() -> None:
    run = opened(run="digits-1")
    assert (run.the(RunContinued).checkpoint, run.the(RunContinued).first_index) == (None, 0)
    assert "it left no checkpoint" in run.the(RunContinued).reason
    assert not run.group.waits


@pytest.mark.parametrize("validates", [True, False])
def test_given_a_validation_that_was_not_over_then_it_is_begun_again_by_a_run_that_can(validates: bool) -> None:
    spec = ValidationSpec(entrypoint="m:f") if validates else None
    run = Run(1, storage="s3://bucket/runs", validation=spec).lays_out()
    left: list[Json] = [
        old("a", 3, status="pending", wish={"own": True, "arguments": {"k": 1}}),
        old("b", 7, status="failed"),
    ]
    run.says(run.task_ended("open", value={"run": "digits-1", "checkpoints": left}))
    assert {one.name: one.status for one in run.state.checkpoints.kept} == {
        "a": "pending" if validates else "committed",
        "b": "failed",
    }
    orders = [said.task for said in run.said if isinstance(said, TaskOrdered)]
    assert [task.arguments for task in orders] == ([{"name": "a", "arguments": {"k": 1}}] if validates else [])


def test_given_checkpoints_in_doubt_then_they_are_passed_over() -> None:
    run = opened(checkpoints=[old("a", 3), old("b", 7)], doubtful=["b"])
    assert (run.the(RunContinued).checkpoint, run.the(RunContinued).first_index) == ("a", 8)
    assert "b may hold files that do not belong together" in run.the(RunContinued).reason


def test_given_damaged_ones_beside_whole_ones_then_they_are_named_and_passed_over() -> None:
    run = opened(checkpoints=[old("a", 3), old("b", 7)], damaged=["checkpoint_000008_1", "own"])
    assert (run.the(RunContinued).checkpoint, run.the(RunContinued).first_index) == ("b", 9)
    warned = run.the(Warned)
    assert (warned.about, warned.checkpoint) == ("damaged", "own")
    assert "checkpoint_000008_1/.runfold/manifest.json, own/.runfold/manifest.json cannot be read" in warned.reason
    assert "begins from b" in warned.reason
    assert run.state.warnings == (warned.reason,)
    assert not run.group.waits


@pytest.mark.parametrize("more", [{}, {"checkpoints": [old("a", 3)], "doubtful": ["a"]}])
def test_given_damaged_ones_alone_then_the_run_ends_and_names_them(more: dict[str, Json]) -> None:
    run = opened(damaged=["checkpoint_000008_1"], **more)
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.failure.kind) == ("raise", "storage")
    assert "checkpoint_000008_1/.runfold/manifest.json cannot be read, and no other" in decided.reason
    assert run.none(RunContinued)


def test_given_nothing_there_then_the_run_begins_from_nothing() -> None:
    run = opened()
    assert run.the(TaskClosed).reason == "the storage was looked into: nothing to continue from"
    assert not run.group.waits
    run = Run(1, storage="s3://b").lays_out()
    run.says(run.task_ended("open", value="no such thing"))
    assert run.the(TaskClosed).outcome == "done"


def test_given_storage_that_cannot_be_used_then_the_run_ends_before_it_trains() -> None:
    run = Run(1, storage="s3://nope", failure=FailureConfig(max_failures=3)).lays_out()
    run.says(run.task_ended("open", "failed", why="no such bucket"))
    assert run.the(TaskClosed).reason == "the storage cannot be used: StorageError: no such bucket"
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.failure.kind) == ("raise", "storage")
    assert "no such bucket" in decided.reason
    assert run.name == "shutting_down"


def test_given_storage_that_cannot_be_used_then_ranks_that_wait_for_it_do_not_begin_and_nothing_is_retried() -> None:
    run = Run(1, storage="s3://nope", failure=FailureConfig(max_failures=3)).running()
    assert run.name == "scheduling"
    run.says(run.task_ended("open", "failed", why="no such bucket"))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.failure.kind) == ("raise", "storage")
    assert run.path == ["scheduling>shutting_down"]


def test_given_no_storage_named_then_nothing_is_looked_into() -> None:
    run = Run(1).lays_out()
    assert run.none(TaskOrdered)
    assert not run.group.waits


def test_given_ranks_that_wait_for_the_word_where_to_begin_then_the_run_is_not_running_yet() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1), timeouts=Timeouts(import_timeout_s=5.0)).running()
    run.says(run.shard(0, 0), run.failed(0))
    run.starts()
    assert run.name == "scheduling"
    run.waits(6)
    assert run.name == "scheduling", "the seal has a deadline of its own"
    run.says(run.sealed(FIRST))
    assert run.name == "running"


def test_given_a_lost_runner_then_what_its_ranks_had_begun_to_upload_goes_when_the_next_ones_are_at_work() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    run.says(run.runner_lost())
    run.says(run.released())
    run.lays_out()
    assert run.none(TaskOrdered)
    run.starts()
    task = run.the(TaskOrdered).task
    assert (task.kind, task.arguments["before"], task.arguments["attempt"]) == ("delete", 2, 1)
    run.says(run.task_ended(task.id))
    assert run.the(TaskClosed).reason == "deleted: what attempts before 2 had left"
    assert run.waits(1).said == ()
