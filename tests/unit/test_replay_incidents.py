"""What a run went through besides its failures, as the log tells it."""

from __future__ import annotations

import msgspec
import pytest

from runfold.controller.effects import CAUSE_AWAITED_MAX_S
from runfold.events.base import Cause
from runfold.events.conclusions import ControllerStarted, ProgressStopped, SilenceConcluded
from runfold.events.config import CheckpointConfig, FailureConfig
from runfold.events.requests import AbortRun
from runfold.replay.incidents import INCIDENTS_MAX_COUNT, Incident, incidents
from runfold.replay.render import INCIDENTS_SHOWN_MAX_COUNT, render_story
from runfold.replay.story import story
from support.histories import failing_run, finished_run, history
from support.runs import DECIDER, Run


def of(run: Run) -> list[Incident]:
    return list(incidents(history(run.bytes)))


def kinds(run: Run) -> list[str]:
    return [incident.kind for incident in of(run)]


@pytest.mark.parametrize("lines", [finished_run(), failing_run()])
def test_a_run_that_went_as_it_should_had_none(lines: list[bytes]) -> None:
    assert incidents(history(lines)) == ()


def test_another_controller_is_told_of() -> None:
    run = Run(2).running().says(ControllerStarted(controller="ctl-b2", decider=DECIDER))
    (found,) = of(run)
    assert (found.kind, found.what) == ("controller_changed", "controller ctl-b2, epoch 2")


def test_silence_and_hangs_are_told_of_and_their_end_is_not() -> None:
    run = Run(2).running()
    run.says(SilenceConcluded(source="local", silence_s=12.0, lost=False, reason="no beat"))
    run.says(SilenceConcluded(source="local", silence_s=0.0, lost=False, reason="heard again"))
    run.says(ProgressStopped(ranks=(1,), quiet_s=70.0, limit_s=None))
    run.says(ProgressStopped(ranks=(), quiet_s=0.0, limit_s=None))
    silent, stuck = of(run)
    assert (silent.node, stuck.ranks) == ("local", (1,))
    assert "rank 1 made no progress for 70.0 s" in stuck.what


def test_notices_requests_and_waits_are_told_of() -> None:
    run = Run(2)
    run.says(run.queued(ahead=1))
    run.says(run.placed(), after_s=4.0)
    run.says(run.noticed("local", within_s=60.0))
    run.says(AbortRun(id="a", by="ann", reason="enough"))
    waited, noticed, aborted = of(run)
    assert waited.what == "waited 4.0 s for room"
    assert noticed.node == "local"
    assert aborted.kind == "request_accepted"


def test_a_short_wait_is_not() -> None:
    run = Run(2)
    run.says(run.queued(ahead=1))
    run.says(run.placed(), after_s=0.5)
    assert of(run) == []


def test_voices_that_were_heard_late_tell_of_an_outage() -> None:
    run = Run(2).running()
    late = [msgspec.structs.replace(run.reported(0, k), clock_s=run.clock_s + k) for k in range(3)]
    run.says(*late, after_s=30.0)
    run.says(msgspec.structs.replace(run.reported(0, 3), clock_s=run.clock_s))
    (found,) = of(run)
    assert (found.kind, found.node) == ("heard_late", "local")
    assert "was heard up to 29.9 s late" in found.what


def test_a_task_that_failed_and_an_upload_that_failed_are_told_of() -> None:
    run = Run(2, checkpoint=CheckpointConfig(num_to_keep=1)).running()
    for index in range(2):
        run.says(*(run.shard(rank, index) for rank in range(2)))
        run.says(run.sealed(f"checkpoint_{index:06d}_1"))
    run.says(run.task_ended("delete-1", "failed", why="no right to"))
    failed = msgspec.structs.replace(run.reported(1, 2), upload_error="disk full")
    again = msgspec.structs.replace(run.reported(1, 3), upload_error="disk full")
    run.says(failed, again)
    task, upload = of(run)
    assert (task.kind, "no right to" in task.reason) == ("task_closed", True)
    assert (upload.kind, upload.ranks, upload.reason) == ("upload_failed", (1,), "disk full")
    assert "of its report 2" in upload.what


def test_late_evidence_that_changed_the_first_cause_is_told_of() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0, "gone", "peer"))
    run.waits(CAUSE_AWAITED_MAX_S)
    run.says(run.failed(1, attempt=1, ago_s=CAUSE_AWAITED_MAX_S + 0.2))
    (found,) = [one for one in of(run) if one.kind == "first_cause_revised"]
    assert found.ranks == (1,)


def test_the_header_shows_the_first_and_says_how_many_more() -> None:
    run = Run(2).running()
    for k in range(INCIDENTS_SHOWN_MAX_COUNT + 3):
        run.says(ControllerStarted(controller=f"ctl-{k}", decider=DECIDER))
    text = "\n".join(render_story(story(history(run.bytes))))
    assert text.count("noticed   ") == INCIDENTS_SHOWN_MAX_COUNT
    assert "… 3 more in the timeline" in text


def test_there_is_a_limit() -> None:
    run = Run(1).running()
    for k in range(INCIDENTS_MAX_COUNT + 3):
        run.says(ControllerStarted(controller=f"ctl-{k}", decider=DECIDER))
    assert len(of(run)) == INCIDENTS_MAX_COUNT
    told = story(history(run.bytes))
    assert (len(told.incidents), told.more_incidents) == (INCIDENTS_MAX_COUNT, 3)
    assert any(f"… {INCIDENTS_MAX_COUNT - INCIDENTS_SHOWN_MAX_COUNT + 3} more" in line for line in render_story(told))
    assert Cause(input=0) == run.said[0].cause
