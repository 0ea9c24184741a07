"""Checkpoints as the controller sees them: gathered, sealed, committed, waited for, doubted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.events.base import Cause, Json, Moment
from runfold.events.config import CheckpointConfig, FailureConfig, Timeouts
from runfold.events.edges import IllegalEdge
from runfold.events.evolve import evolve
from runfold.events.facts import Reported
from runfold.events.requests import AbortRun, CheckpointNow, StopAtCheckpoint
from runfold.events.transitions import (
    CheckpointCommitted,
    CheckpointsDoubted,
    FailureDecided,
    RequestAccepted,
    RequestRefused,
    StateChanged,
    TaskClosed,
    TaskOrdered,
    Warned,
)
from support.runs import AT, Run

FIRST = "checkpoint_000000_1"
LIMITED = Timeouts(checkpoint_timeout_s=10.0)


def kinds(run: Run) -> list[str]:
    """The tasks that are not closed."""
    return [one.task.id for one in run.state.tasks]


def committed(run: Run, index: int = 0, **metrics: Json) -> Run:
    """Let every rank report files, and the checkpoint be sealed."""
    name = f"checkpoint_{run.state.checkpoints.base + index:06d}_{run.state.attempt}"
    run.says(*(run.shard(rank.rank, index) for rank in run.group.ranks))
    return run.says(run.sealed(name, metrics or None))


# --- gathering and sealing


def test_given_a_rank_with_files_then_the_others_are_waited_for() -> None:
    run = Run(2).running()
    run.says(run.shard(1, 0))
    assert run.said == ()
    assert [(one.name, one.ranks) for one in run.state.checkpoints.gathering] == [(FIRST, "2")]


def test_given_every_rank_passed_then_the_seal_is_ordered_from_the_runner_of_rank_0() -> None:
    run = Run(2).running()
    run.says(run.shard(1, 0))
    run.says(run.reported(0, 0))
    task = run.the(TaskOrdered).task
    assert task.arguments == {
        "name": FIRST,
        "index": 0,
        "attempt": 1,
        "ranks": "2",
        "world_size": 2,
        "named": False,
    }
    assert "1 with files, 1 without files" in run.the(TaskOrdered).reason
    (told,) = assignment(run.state, run.head).tasks
    assert (told.id, told.source) == (f"seal:{FIRST}", "local")
    assert run.state.checkpoints.gathering == ()


def test_given_a_seal_then_the_checkpoint_counts() -> None:
    run = committed(Run(2).running(), loss=0.5)
    said = run.the(CheckpointCommitted)
    assert (said.name, said.index, said.attempt, said.shards, said.size_bytes) == (FIRST, 0, 1, 2, 10)
    assert said.manifest_digest == f"d-{FIRST}"
    assert said.metrics == {"loss": 0.5}
    assert status(run.state, run.head, AT).checkpoint == FIRST
    assert run.state.tasks == ()


def test_given_files_in_what_is_sealed_or_about_to_be_then_they_gather_nothing_more() -> None:
    run = Run(1).running()
    run.says(run.shard(0, 0, "mine"))
    run.says(run.shard(0, 1, "mine"))
    assert "rank 0 reported files for mine when that was sealed, or about to be" in run.the(Warned).reason
    run.says(run.sealed("mine"))
    run.says(run.shard(0, 2, "mine"))
    assert run.said == ()
    assert run.state.checkpoints.gathering == ()


def test_given_a_seal_told_twice_then_the_second_is_stale() -> None:
    run = committed(Run(1).running())
    run.says(run.sealed(FIRST))
    assert run.said == ()
    assert run.state.dropped.stale == 1


def test_given_a_rank_that_returned_early_then_it_counts_as_done() -> None:
    run = Run(3).running()
    run.says(run.returned(2))
    run.says(run.shard(0, 5))
    run.says(run.reported(1, 5))
    assert run.the(TaskOrdered).task.kind == "seal"


def test_given_a_rank_that_failed_then_it_has_not_passed() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.shard(0, 0), run.failed(1))
    assert [said.task.kind for said in run.said if isinstance(said, TaskOrdered)] == ["delete"]


def test_given_metrics_only_then_nothing_is_ordered() -> None:
    run = Run(2).running()
    run.says(*(run.reported(rank, index) for rank in (0, 1) for index in range(3)))
    assert run.said == ()


def test_given_only_rank_3_with_files_then_it_is_committed_when_the_others_have_passed() -> None:
    run = Run(4).running()
    run.says(run.shard(3, 0), run.reported(0, 0), run.reported(1, 4))
    assert run.said == ()
    run.says(run.reported(2, 0))
    run.says(run.sealed(FIRST))
    assert run.the(CheckpointCommitted).shards == 1


def test_given_names_then_shards_belong_together_by_name_whatever_the_counts() -> None:
    run = Run(2).running()
    run.says(run.shard(0, 0, "a"), run.shard(1, 4, "a"))
    assert run.the(TaskOrdered).task.arguments["named"] is True
    run.says(run.shard(0, 1, "b"), run.reported(1, 9))
    assert run.said == ()
    run.says(run.shard(1, 10, "b"))
    assert run.the(TaskOrdered).task.arguments["ranks"] == "3"
    run.says(run.shard(0, 11, "c"), run.shard(1, 12, "d"))
    assert kinds(run)[-2:] == ["seal:c", "seal:d"]


def test_given_seals_that_end_in_another_order_then_the_newest_stays_the_one_to_begin_from() -> None:
    run = Run(1).running()
    run.says(run.shard(0, 0), run.shard(0, 1))
    run.says(run.sealed("checkpoint_000001_1"))
    run.says(run.sealed(FIRST))
    assert run.state.checkpoint is not None
    assert run.state.checkpoint.name == "checkpoint_000001_1"
    assert [one.name for one in run.state.checkpoints.kept] == [FIRST, "checkpoint_000001_1"]


# --- failing seals


def test_given_a_seal_that_failed_then_the_directory_is_deleted_and_the_run_goes_on() -> None:
    run = Run(1).running()
    run.says(run.shard(0, 0))
    run.says(run.task_ended(f"seal:{FIRST}", "failed", why="disk full"))
    closed = run.the(TaskClosed)
    assert closed.outcome == "failed"
    assert closed.reason == f"checkpoint {FIRST} is not committed: StorageError: disk full"
    assert run.the(TaskOrdered).task.arguments == {"names": [FIRST], "sealed": False, "attempt": 1}
    assert run.name == "running"


def test_given_too_many_failed_seals_in_a_row_then_the_attempt_fails_for_its_storage() -> None:
    run = Run(1, checkpoint=CheckpointConfig(upload_failure_limit=1), failure=FailureConfig(max_failures=1)).running()
    for index in range(2):
        run.says(run.shard(0, index))
        run.says(run.task_ended(f"seal:checkpoint_{index:06d}_1", "failed", why="disk full"))
    decided = run.the(FailureDecided)
    assert (decided.decision, decided.failure.kind, decided.budget) == ("retry", "storage", "worker")
    assert run.state.checkpoints.trouble is None
    run.starts()
    run.says(run.shard(0, 0))
    run.says(run.task_ended("seal:checkpoint_000002_2", "failed", why="disk full"))
    assert run.name == "running"


def test_given_a_seal_that_nobody_ends_then_its_time_runs_out() -> None:
    run = Run(1, timeouts=LIMITED).running()
    run.says(run.shard(0, 0))
    run.says(run.returned(0))
    assert run.name == "running"
    assert run.wake_at is not None
    run.waits(11)
    assert run.the(TaskClosed).outcome == "timed_out"
    assert "nobody said so in time" in run.the(TaskClosed).reason
    assert run.name == "shutting_down"


# --- the end


def test_given_all_returned_then_the_run_ends_with_its_last_checkpoint() -> None:
    run = Run(1).running()
    run.says(run.shard(0, 0), run.returned(0))
    assert run.name == "running"
    run.says(run.sealed(FIRST))
    assert [type(said) for said in run.said] == [CheckpointCommitted, StateChanged]
    assert run.name == "shutting_down"


def test_given_different_counts_after_a_checkpoint_of_several_ranks_then_it_is_in_doubt() -> None:
    run = committed(Run(2).running())
    run.says(run.reported(0, 1))
    run.finishing()
    doubted = run.the(CheckpointsDoubted)
    assert doubted.names == (FIRST,)
    assert "different counts of reports (1 to 2, fewest: rank 1)" in doubted.reason
    assert run.the(TaskOrdered).task.kind == "doubt"
    assert doubted.reason in status(run.state, run.head, AT).warnings
    assert run.state.checkpoints.kept[0].doubtful
    run.says(run.task_ended("doubt"))
    assert run.the(TaskClosed).reason == f"marked as doubtful: {FIRST}"


def test_given_equal_counts_or_files_of_one_rank_then_there_is_no_doubt() -> None:
    assert committed(Run(2).running()).finishing().none(CheckpointsDoubted)
    run = Run(2).running()
    run.says(run.shard(0, 0), run.reported(1, 0))
    run.says(run.sealed(FIRST))
    run.says(run.reported(0, 1))
    assert run.finishing().none(CheckpointsDoubted)


# --- asking for one


def test_given_a_wish_for_a_checkpoint_then_the_ranks_are_asked_until_there_is_one() -> None:
    run = Run(1).running()
    run.says(CheckpointNow(id="r1", by="ann"))
    assert "as ann asked" in run.the(RequestAccepted).reason
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert told.job.wanted == "r1"
    run.says(CheckpointNow(id="r2"))
    assert "already" in run.the(RequestAccepted).reason
    committed(run)
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert told.job.wanted is None
    assert run.name == "running"


def test_given_a_wish_to_stop_at_a_checkpoint_then_the_run_finishes_with_the_next_one() -> None:
    run = Run(1).running()
    run.says(CheckpointNow(id="r1"), StopAtCheckpoint(id="r2", by="ann", reason="the cluster is needed"))
    run.says(StopAtCheckpoint(id="r3", by="bob"))
    committed(run)
    assert run.name == "shutting_down"
    assert run.the(StateChanged).next == "finished"
    assert run.the(StateChanged).reason == (f"finished by ann: stopped at checkpoint {FIRST} (the cluster is needed)")
    run.says(CheckpointNow(id="r4"))
    assert run.the(RequestRefused).reason == "the run is ending"
    run.says(AbortRun(id="r5"))
    assert "less time" in run.the(RequestAccepted).reason
    run.says(run.released())
    assert run.name == "finished"


def test_given_a_wish_to_stop_while_nodes_go_then_the_run_finishes_with_the_checkpoint_not_at_the_deadline() -> None:
    run = Run(1).running()
    run.says(run.noticed("local", within_s=60))
    run.says(StopAtCheckpoint(id="r1", by="ann"))
    assert run.name == "preempting"
    committed(run)
    assert (run.path, run.the(StateChanged).next) == (["preempting>shutting_down"], "finished")


def test_given_a_wish_to_stop_and_a_failure_then_the_next_attempt_is_asked_too() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    run.says(StopAtCheckpoint(id="r1", by="ann"))
    run.says(run.failed(0))
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert (told.attempt, told.job.wanted) == (2, "r1")
    run.starts()
    committed(run)
    assert run.the(StateChanged).next == "finished"


def test_given_a_wish_to_stop_and_no_checkpoint_ever_then_the_run_ends_as_it_would() -> None:
    run = Run(1).running()
    run.says(StopAtCheckpoint(id="r1", by="ann"))
    run.finishing()
    assert run.the(StateChanged).reason == "the rank returned"


def test_given_a_checkpoint_of_before_the_wish_then_the_ranks_are_asked_on_but_a_stop_is_content_with_it() -> None:
    for stop in (False, True):
        run = Run(1).running()
        run.says(run.shard(0, 0))
        run.says(StopAtCheckpoint(id="r1") if stop else CheckpointNow(id="r1"))
        run.says(run.sealed(FIRST))
        assert run.name == ("shutting_down" if stop else "running")
        told = assignment(run.state, run.head)
        assert told.job is None or told.job.wanted == (None if stop else "r1")
        if not stop:
            committed(run, 1)
            assert run.state.checkpoints.wanted is None


def test_given_nodes_that_go_then_a_checkpoint_is_asked_for() -> None:
    run = Run(1).running()
    run.says(run.noticed("local", within_s=60))
    told = assignment(run.state, run.head)
    assert told.job is not None
    assert str(told.job.wanted).startswith("preemption-")


def test_given_a_rank_that_does_not_look_at_its_checkpoint_then_that_is_said_once() -> None:
    run = committed(Run(1, failure=FailureConfig(max_failures=2)).running())
    run.says(run.failed(0))
    run.starts()
    run.says(replace(run.reported(0, 0), unread=True))
    assert "get_checkpoint()" in run.the(Warned).reason
    assert FIRST in run.the(Warned).reason
    run.says(replace(run.returned(0), unread=True))
    assert run.none(Warned)


def test_given_one_that_never_reports_then_its_return_tells() -> None:
    run = committed(Run(1, failure=FailureConfig(max_failures=1)).running())
    run.says(run.failed(0))
    run.starts()
    run.says(replace(run.returned(0), unread=True))
    assert run.the(Warned).about == "unread"


# --- edges


def test_a_warning_is_kept_once() -> None:
    warned = Warned(cause=Cause(input=0), reason="mind the gap", about="gap")
    state = evolve(Run(1).state, warned, Moment(n=9, t=9.0))
    again = evolve(state, warned, Moment(n=10, t=9.0))
    assert (again.warnings, again.told) == (("mind the gap",), ("gap",))


def test_a_task_is_closed_once() -> None:
    closed = TaskClosed(cause=Cause(input=0), reason="r", task="x", task_kind="seal", outcome="done")
    with pytest.raises(IllegalEdge, match="not open"):
        evolve(Run(1).running().state, closed, Moment(n=9, t=9.0))


def test_a_task_is_ordered_once() -> None:
    run = Run(1).running()
    run.says(run.shard(0, 0))
    with pytest.raises(IllegalEdge, match="already"):
        evolve(run.state, run.the(TaskOrdered), Moment(n=9, t=9.0))


# --- places in the data


def at(run: Run, rank: int, index: int, cursor: str, *, files: bool = False) -> Reported:
    """A report that says where its rank is in its data."""
    return replace(run.shard(rank, index) if files else run.reported(rank, index), cursor=cursor)


def test_given_places_in_the_data_then_the_seal_has_those_of_its_report_whoever_saved() -> None:
    run = Run(3).running()
    run.says(at(run, 1, 0, "b"), at(run, 1, 1, "later"))
    run.says(at(run, 0, 0, "a", files=True), at(run, 2, 0, "b"))
    assert run.the(TaskOrdered).task.arguments["cursors"] == {"1": "a", "6": "b"}
    assert [(mark.at, mark.ranks) for mark in run.state.checkpoints.marks] == [
        (0, {"a": "1", "b": "6"}),
        (1, {"later": "2"}),
    ]
    status_now = status(run.state, run.head, AT)
    assert (status_now.unsettled, status_now.checkpoints) == ((0,), ())


def test_given_many_reports_then_only_the_last_places_and_those_still_needed_are_remembered() -> None:
    run = Run(2).running()
    run.says(at(run, 0, 0, "first", files=True))
    run.says(*(at(run, 0, index, f"{index}") for index in range(1, 100)))
    kept = [mark.at for mark in run.state.checkpoints.marks]
    assert (kept[0], kept[1:], len(kept)) == (0, list(range(36, 100)), 65)
    assert status(run.state, run.head, AT).unsettled == (0,)


def test_given_another_attempt_then_places_of_the_one_before_are_forgotten() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    run.says(at(run, 0, 0, "a"))
    run.says(run.failed(0))
    assert run.state.checkpoints.marks == ()


def test_given_committed_checkpoints_then_the_status_lists_them_by_score() -> None:
    config = CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order="min")
    run = Run(1, checkpoint=config).running()
    committed(run, loss=0.5)
    committed(run, 1, loss=0.9)
    assert [(one.index, one.score, one.status) for one in status(run.state, run.head, AT).checkpoints] == [
        (1, 0.9, "committed"),
        (0, 0.5, "committed"),
    ]
