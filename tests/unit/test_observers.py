"""Observers: told everything once, in order, from any position; each failing alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

import runfold
from runfold.events.config import FailureConfig
from runfold.events.fold import fold
from runfold.events.requests import AbortRun
from runfold.follow import Told
from runfold.observers import Observers, Watching, finished
from runfold.workers.callbacks import ControllerState, GroupInfo, RunContext, gates_of
from support.runs import POOL, Run

if TYPE_CHECKING:
    from runfold.events.base import Json
    from runfold.events.beats import RunnerBeat
    from runfold.happenings import Happening


class Everything(
    runfold.ControllerCallback, runfold.WorkerGroupCallback, runfold.ReplicaGroupCallback, runfold.UserCallback
):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_event(self, happening: Happening) -> None:
        if happening.hook != "after_worker_group_poll_status":
            self.told.append(happening.hook)


class Reports(runfold.UserCallback):
    def __init__(self) -> None:
        self.reports: list[tuple[list[dict[str, Json]], object]] = []
        self.errors: list[dict[int, str]] = []

    def after_report(self, run_context: RunContext, metrics: list[dict[str, Json]], checkpoint: object | None) -> None:
        self.reports.append((metrics, checkpoint))

    def after_exception(self, run_context: RunContext, worker_exceptions: dict[int, Exception]) -> None:
        self.errors.append({rank: str(error) for rank, error in worker_exceptions.items()})


def tell(observers: Observers, run: Run) -> None:
    """Tell of every entry of a run."""
    state = None
    for entry in run.entries:
        state = fold(state, entry)
        observers.tell(entry, state)


def failed_once() -> Run:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.reported(0, 0), run.reported(1, 0))
    run.says(run.failed(1), run.failed(0, "too"))
    run.starts()
    run.says(run.reported(0, 0), run.reported(1, 0))
    run.finishing()
    return run.says(run.released())


def test_a_run_is_told_from_its_start_to_its_end_in_the_order_of_its_log(tmp_path: Path) -> None:
    everything = Everything()
    tell(Observers([everything], tmp_path), failed_once())
    changed = "after_controller_state_update"
    group = ["after_worker_group_start", "after_worker_group_training_start", changed]
    assert everything.told == [
        "after_controller_start",
        "before_worker_group_start",
        changed,
        *group,
        "after_report",
        "after_exception",
        "before_worker_group_shutdown",
        changed,
        "before_worker_group_start",
        changed,
        *group,
        "after_report",
        "before_worker_group_shutdown",
        changed,
        "after_worker_group_shutdown",
        changed,
    ]


def test_reports_are_told_when_every_rank_has_passed_them_and_errors_by_rank(tmp_path: Path) -> None:
    reports = Reports()
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.reported(0, 0, loss=0.5), run.reported(0, 1, loss=0.4))
    run.says(run.reported(1, 0))
    observers = Observers([reports], tmp_path)
    tell(observers, run)
    assert reports.reports == [([{"loss": 0.5}, {}], None)]
    run.says(run.failed(1), run.failed(0, "too"))
    tell(Observers([reports], tmp_path, position=observers.position), run)
    assert reports.reports[1:] == [([{"loss": 0.4}, {}], None)], "what an attempt leaves is told as it is"
    assert reports.errors == [{0: "RuntimeError: too", 1: "RuntimeError: boom"}]


def test_a_late_report_of_an_attempt_that_is_over_is_none_of_the_next_one(tmp_path: Path) -> None:
    reports = Reports()
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.reported(0, 0, loss=0.5))
    run.says(run.failed(0), run.failed(1)).starts()
    run.says(run.reported(0, 0, loss=0.4), run.reported(1, 0))
    run.says(run.reported(1, 0, attempt=1))
    tell(Observers([reports], tmp_path), run)
    assert [[one.get("loss") for one in metrics] for metrics, _ in reports.reports] == [[0.5, None], [0.4, None]]


def test_a_report_with_files_waits_until_its_checkpoint_is_committed(tmp_path: Path) -> None:
    reports, run = Reports(), Run(1).running()
    observers = Observers([reports], tmp_path)
    run.says(run.shard(0, 0))
    run.says(run.reported(0, 1))
    name = "checkpoint_000000_1"
    run.says(run.sealed(name))
    tell(observers, run)
    (_, checkpoint), (_, none) = reports.reports
    assert isinstance(checkpoint, runfold.Checkpoint)
    assert checkpoint.path == str(tmp_path / "digits" / name)
    assert none is None


def test_a_checkpoint_that_is_given_up_holds_no_report_back(tmp_path: Path) -> None:
    reports, run = Reports(), Run(1).running()
    run.says(run.shard(0, 0))
    run.says(run.task_ended("seal:checkpoint_000000_1", "failed", why="full"))
    tell(Observers([reports], tmp_path), run)
    assert [checkpoint for _, checkpoint in reports.reports] == [None]


def test_an_abort_is_told_by_its_own_hooks(tmp_path: Path) -> None:
    everything, run = Everything(), Run(1).running()
    run.says(AbortRun(id="a", by="ann"))
    run.says(run.released())
    tell(Observers([everything], tmp_path), run)
    assert everything.told[-4:] == [
        "before_worker_group_abort",
        "after_controller_state_update",
        "after_worker_group_abort",
        "after_controller_state_update",
    ]


def test_from_a_position_on_only_what_follows_is_told(tmp_path: Path) -> None:
    whole, run = Everything(), failed_once()
    tell(Observers([whole], tmp_path), run)
    for cut in range(len(run.entries)):
        parts = Everything()
        first = Observers([parts], tmp_path)
        state = None
        for entry in run.entries[:cut]:
            state = fold(state, entry)
            first.tell(entry, state)
        tell(Observers([parts], tmp_path, position=first.position), run)
        assert parts.told == whole.told


class Raises(runfold.ControllerCallback):
    def __init__(self) -> None:
        self.calls = 0

    def after_controller_state_update(self, previous_state: ControllerState, current_state: ControllerState) -> None:
        self.calls += 1
        raise SystemExit("not even this")


def test_one_that_raises_is_counted_and_told_no_more_after_its_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raises, everything = Raises(), Everything()
    observers = Observers([raises, everything], tmp_path, failure_limit=2)
    with caplog.at_level(logging.ERROR, "runfold.callbacks"):
        tell(observers, failed_once())
    assert (raises.calls, observers.failures) == (2, {"Raises[0]": 2})
    assert "callback_failure_limit" in caplog.text
    assert everything.told[-1] == "after_controller_state_update"


class Gated(runfold.ControllerCallback):
    def __init__(self) -> None:
        self.calls = 0

    @runfold.gate
    def after_controller_state_update(self, previous_state: ControllerState, current_state: ControllerState) -> None:
        self.calls += 1

    def before_controller_shutdown(self) -> None:
        self.calls += 1


def test_a_gate_is_not_called_off_the_log_as_well(tmp_path: Path) -> None:
    gated = Gated()
    tell(Observers([gated], tmp_path), failed_once())
    assert gated.calls == 0
    assert gates_of([gated]) == {"after_controller_state_update": "fail", "before_controller_shutdown": "fail"}
    assert gates_of([Everything()]) == {}


class Quiet:
    def __init__(self) -> None:
        self.entries = 0

    def entry(self, told: Told) -> None:
        self.entries += 1

    def beat(self, beat: RunnerBeat) -> None:
        raise AssertionError


def test_slow_observers_hold_nothing_up_and_are_told_everything_in_the_end(tmp_path: Path) -> None:
    everything, quiet, run = Everything(), Quiet(), failed_once()
    watching = Watching(Observers([everything], tmp_path), quiet)
    state = None
    for entry in run.entries:
        state = fold(state, entry)
        watching.entry(Told(entry, state, run.head))
    watching.finish(finished(run.state, "the result"))
    watching.close()
    assert everything.told[-1] == "after_controller_finish"
    assert quiet.entries == len(run.entries)


class Groups(runfold.WorkerGroupCallback, runfold.ReplicaGroupCallback):
    def __init__(self) -> None:
        self.groups: list[GroupInfo] = []
        self.polls = 0

    def after_worker_group_training_start(self, worker_group: GroupInfo) -> None:
        self.groups.append(worker_group)

    def after_worker_group_poll_status(self, worker_group_status: object) -> None:
        self.polls += 1


def test_a_group_is_told_with_its_ranks_and_their_nodes(tmp_path: Path) -> None:
    groups = Groups()
    run = Run(2, nodes=("a", "b")).running()
    tell(Observers([groups], tmp_path), run)
    assert [(one.world_rank, one.node) for one in groups.groups[0].workers] == [(0, "a"), (1, "b")]
    assert groups.polls == 1
    assert run.state.supervisor == POOL


class Replicas(runfold.ReplicaGroupCallback):
    def __init__(self) -> None:
        self.told: list[tuple[str, GroupInfo]] = []

    def before_replica_group_shutdown(self, replica_group: GroupInfo) -> None:
        self.told.append(("ends", replica_group))

    def after_replica_group_start(self, replica_group: GroupInfo) -> None:
        self.told.append(("begins", replica_group))


class Grouped:
    """Has the hooks that stand in for those of groups of both kinds, whatever else it is."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int | None]] = []

    def after_execution_group_start(self, execution_group: GroupInfo) -> None:
        self.told.append(("begins", execution_group.replica))

    def before_execution_group_shutdown(self, execution_group: GroupInfo) -> None:
        self.told.append(("ends", execution_group.replica))


class Execution(Grouped, runfold.ExecutionGroupCallback):
    """A callback of groups and nothing else."""


class User(Grouped, runfold.UserCallback):
    """One that is of another kind, and has them too."""


class OfWorkers(Grouped, runfold.WorkerGroupCallback):
    """Of worker groups alone."""


class Alike(runfold.WorkerGroupCallback, runfold.ReplicaGroupCallback):
    """Has the hooks that stand in for those of groups of both kinds."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int | None]] = []

    def after_execution_group_start(self, execution_group: GroupInfo) -> None:
        self.told.append(("begins", execution_group.replica))

    def before_execution_group_shutdown(self, execution_group: GroupInfo) -> None:
        self.told.append(("ends", execution_group.replica))


def test_replica_groups_are_told_when_they_go_and_when_they_are_back(tmp_path: Path) -> None:
    replicas, alike = Replicas(), Alike()
    others = [Execution(), User(), Grouped()]
    workers_only = OfWorkers()
    run = Run(4, nodes=("a", "b"), replica_size=2, failure=FailureConfig(max_failures=2)).running().says()
    run.says(run.failed(3))
    run.starts()
    run.says(run.returned(0), run.returned(1), *(replace(run.returned(rank), life=2) for rank in (2, 3)))
    tell(Observers([replicas, alike, *others, workers_only], tmp_path), run)
    workers = [(2, "b"), (3, "b")]
    assert [
        (what, one.attempt, one.replica, one.life, one.num_workers, [(w.world_rank, w.node) for w in one.workers])
        for what, one in replicas.told
    ] == [("ends", 1, 1, 1, 2, workers), ("begins", 1, 1, 2, 2, workers)]
    assert alike.told == [("begins", None), ("ends", 1), ("begins", 1), ("ends", None)]
    assert [one.told for one in others] == [alike.told] * 3
    assert workers_only.told == [("begins", None), ("ends", None)]


def test_reports_of_the_others_are_told_while_a_replica_group_waits_for_its_place(tmp_path: Path) -> None:
    reports = Reports()
    run = Run(4, nodes=("a", "b"), replica_size=2, failure=FailureConfig(max_failures=2)).running()
    run.says(run.runner_lost("b")).says(run.reported(0, 0, loss=3.0)).says(run.reported(1, 0))
    tell(Observers([reports], tmp_path), run)
    assert [metrics for metrics, _ in reports.reports] == [[{"loss": 3.0}, {}, {}, {}]]


def test_a_hook_that_stands_in_for_another_may_be_a_gate() -> None:
    class Asked(runfold.WorkerGroupCallback):
        @runfold.gate
        def after_execution_group_start(self, execution_group: GroupInfo) -> None:
            """Be asked."""

    class AskedOfBoth(runfold.ExecutionGroupCallback):
        @runfold.gate(on_error="warn")
        def after_execution_group_start(self, execution_group: GroupInfo) -> None:
            """Be asked."""

    assert gates_of([Asked()]) == {"after_worker_group_start": "fail"}
    assert gates_of([AskedOfBoth()]) == {"after_worker_group_start": "warn", "after_replica_group_start": "warn"}
    assert gates_of([Alike()]) == {}
