"""Every timeout has a name and a place in the status: what runs is shown, with its limit and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.controller.status import status
from runfold.events.conclusions import ProgressStopped, SilenceConcluded
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.requests import AbortRun, DumpStacks
from support.runs import AT, Run

if TYPE_CHECKING:
    from runfold.events.status import TimeoutStatus

SILENCE = {"unreachable_after_s": 10.0, "lost_after_s": 60.0, "lost_alone_after_s": 600.0}


def shown(run: Run) -> dict[str, TimeoutStatus]:
    return status(run.state, run.head, AT).timeouts


def limits(run: Run) -> dict[str, float | None]:
    return {name: one.limit_s for name, one in shown(run).items()}


def test_given_no_places_then_nothing_runs() -> None:
    assert limits(Run(2)) == {}


def test_given_places_then_the_runners_have_their_time() -> None:
    run = Run(2).places()
    assert limits(run) == {"start_timeout_s": 60.0, **SILENCE}
    assert shown(run)["start_timeout_s"].due_t == run.t + 60


def test_given_a_layout_then_the_ranks_have_theirs() -> None:
    run = Run(2).lays_out()
    assert limits(run) == {"import_timeout_s": 600.0, **SILENCE}


def test_given_ranks_at_work_then_silence_and_standstill_are_counted() -> None:
    run = Run(2, timeouts=Timeouts(progress_timeout_s=300.0)).running()
    assert limits(run) == {**SILENCE, "progress_timeout_s": 300.0, "collective_timeout_s": None}
    run.says(
        SilenceConcluded(source="local", silence_s=12.0, lost=False, reason="silent"),
        ProgressStopped(ranks=(1,), quiet_s=70.0, limit_s=None),
    )
    assert shown(run)["unreachable_after_s"].counted_s == {"local": 12.0}
    assert shown(run)["progress_timeout_s"].counted_s == {"rank 1": 70.0}


def test_given_a_checkpoint_that_waits_for_ranks_then_its_time_runs() -> None:
    run = Run(2).running()
    run.says(replace(run.reported(0, 0), checkpoint="checkpoint_0_1"))
    assert shown(run)["checkpoint_timeout_s"].due_t == run.t + 600


def test_given_a_task_then_its_deadline_runs() -> None:
    run = Run(2).running().says(DumpStacks(id="r1"))
    assert shown(run)["task stacks-1.1"].due_t == run.t + 15


def test_given_a_back_off_then_it_runs() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1, backoff_s=4.0)).running()
    run.says(run.failed(0))
    assert run.name == "restarting"
    assert limits(run) == {"backoff_s": 4.0}


def test_given_a_notice_then_its_deadline_runs() -> None:
    run = Run(1).running()
    run.says(run.noticed("local", within_s=30.0))
    assert limits(run)["preemption"] == 30.0


def test_given_an_end_then_the_teardown_has_its_time() -> None:
    run = Run(1).running().says(AbortRun(id="r1"))
    assert limits(run) == {"shutdown_deadline_s": 30.0}
    assert limits(run.says(run.released())) == {}
