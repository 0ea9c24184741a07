"""Replica groups: of which size they may be, whom a failure takes along, and which replacements are none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.events.base import Cause, Moment
from runfold.events.conclusions import ProgressStopped, TimerFired
from runfold.events.config import BackendConfig, FailureConfig, ScalingConfig, Timeouts
from runfold.events.edges import IllegalEdge
from runfold.events.evolve import evolve
from runfold.events.replicas import hit_by, replica_size
from runfold.events.requests import ResizeRun
from runfold.events.transitions import (
    AttemptStarted,
    FailureDecided,
    ReplicaGroupReplaced,
    RequestAccepted,
    RequestRefused,
)
from support.runs import POOL, Run


def at_work(*nodes: str) -> Run:
    """Four ranks in groups of two."""
    return Run(4, nodes=nodes, failure=FailureConfig(max_failures=3), replica_size=2).running()


def test_torchft_has_groups_of_one_rank_unless_told_otherwise() -> None:
    assert replica_size(ScalingConfig(num_workers=4), BackendConfig(kind="torchft")) == 1
    assert replica_size(ScalingConfig(num_workers=4, replica_group_size=2), BackendConfig(kind="torchft")) == 2
    assert replica_size(ScalingConfig(num_workers=4), BackendConfig()) is None


@pytest.mark.parametrize("workers", [3, (2, 5)])
def test_ranks_must_be_whole_groups(workers: int | tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="is no multiple of replica_group_size"):
        ScalingConfig(num_workers=workers, replica_group_size=2)
    with pytest.raises(ValueError, match="replica_group_size: must be at least 1"):
        ScalingConfig(replica_group_size=0)


def test_a_failure_of_no_rank_takes_along_who_is_on_its_node_or_everybody() -> None:
    run = at_work("node-a", "node-b")
    failure = replace(run.says(run.failed(3)).the(FailureDecided).failure, rank=None)
    assert hit_by(run.group, replace(failure, node="node-b"), 2) == {1}
    assert hit_by(run.group, replace(failure, node=""), 2) == {0, 1}


def test_what_cannot_be_replaced_is_refused() -> None:
    run = at_work("local")
    failure = run.says(run.failed(3)).the(FailureDecided)
    at = Moment(n=99, t=9.0)
    with pytest.raises(IllegalEdge, match="all replica groups fail together"):
        evolve(run.state, replace(failure, replicas=(0, 1)), at)
    with pytest.raises(IllegalEdge, match="can be replaced by itself"):
        evolve(run.state, replace(failure, replicas=()), at)
    again = ReplicaGroupReplaced(cause=Cause(input=0), reason="r", group=0, life=2, layout=())
    with pytest.raises(IllegalEdge, match="replica group 0 is not down in life 2"):
        evolve(run.state, again, at)


def test_a_rank_that_begins_again_is_not_what_was_found_stuck_before() -> None:
    run = at_work("local")
    stuck = ProgressStopped(ranks=(3,), quiet_s=70.0, limit_s=None)
    run.says(run.failed(3)).says(stuck)
    assert (run.said, run.group.stuck) == ((), None)
    run.says(ProgressStopped(ranks=(0, 3), quiet_s=70.0, limit_s=None))
    assert run.group.stuck is not None
    assert run.group.stuck.ranks == (0,)


def test_who_trains_on_is_as_stuck_as_before() -> None:
    run = at_work("local")
    run.says(ProgressStopped(ranks=(0, 3), quiet_s=70.0, limit_s=None)).says(run.failed(2))
    assert run.group.stuck is not None
    assert run.group.stuck.ranks == (0,)


def test_a_place_whose_runner_is_not_ready_again_cannot_be_begun_on() -> None:
    run = at_work("local").join("local", boot="b2")
    run.says(run.failed(3))
    assert run.the(FailureDecided).decision == "retry", "of the process that speaks for it now nothing is known"


def test_a_timer_that_is_none_of_a_life_at_work_does_nothing() -> None:
    run = at_work("local")
    run.says(run.failed(3)).starts()
    run.says(TimerFired(timer="replica", deadline_t=run.t))
    assert (run.said, run.state.fired) == ((), ())


def test_of_groups_that_were_replaced_the_one_that_is_late_fails() -> None:
    run = Run(
        6, failure=FailureConfig(max_failures=3), timeouts=Timeouts(import_timeout_s=20.0), replica_size=2
    ).running()
    run.says(run.failed(3)).starts()
    run.says(run.failed(5), after_s=1.0).waits(20.0)
    assert run.the(FailureDecided).replicas == (2,)


def test_an_elastic_run_has_whole_groups() -> None:
    run = Run((2, 6), replica_size=2, joined=False)
    run.join(POOL, "local").says(run.room(5))
    assert run.the(AttemptStarted).num_workers == 4
    run.says(ResizeRun(id="r1", num_workers=3))
    assert run.the(RequestRefused).reason == "3 ranks are no whole replica groups of 2 (scaling.replica_group_size)"
    run.says(ResizeRun(id="r2", num_workers=2))
    run.the(RequestAccepted)


def test_a_runner_on_another_place_that_is_not_ready_in_time_is_given_up() -> None:
    run = Run(4, nodes=("node-a", "node-b"), failure=FailureConfig(max_failures=3), replica_size=2).running()
    run.says(run.runner_lost("node-b")).says(run.place_again(1, "node-c", 2))
    run.waits(60.0)
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.budget, decided.replicas, decided.vacated) == (
        "start_timeout",
        "startup",
        (1,),
        (1,),
    )
    assert "no runner on node-c within timeouts.start_timeout_s (60 s)" in decided.reason
