"""A run as a trace: valid by the schema of Chrome's trace events, one track a rank, attempts, checkpoints, failures."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runfold.events.config import CheckpointConfig, FailureConfig
from runfold.replay.errors import CannotRead
from runfold.replay.history import History
from runfold.replay.perfetto import FAILURES, RANKS, RUN, trace_bytes
from support.histories import errored_run, failing_run, finished_run, history
from support.runs import Run

SCHEMA = json.loads((Path(__file__).parents[1] / "support" / "chrome_trace.json").read_text(encoding="utf-8"))


def traced(run: History) -> list[dict[str, Any]]:
    """The events of a run's trace, held against the schema first."""
    trace = json.loads(trace_bytes(run))
    jsonschema.validate(trace, SCHEMA)
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def slices(events: list[dict[str, Any]], track: str) -> list[dict[str, Any]]:
    """What lasts on the track of this name."""
    (pid, tid) = next(
        (event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["args"]["name"] == track
    )
    return [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == (pid, tid)]


def checkpointed() -> History:
    run = Run(2, checkpoint=CheckpointConfig(num_to_keep=2), failure=FailureConfig(max_failures=1)).running()
    run.says(*(run.shard(rank, 0) for rank in range(2)))
    run.says(run.sealed("checkpoint_000000_1", {"loss": 0.5}))
    run.says(run.failed(1))
    return history(run.bytes)


@pytest.mark.parametrize("run", [history(lines) for lines in (finished_run(), failing_run(), errored_run())])
def test_every_run_is_a_valid_trace(run: History) -> None:
    assert traced(run)


def test_there_is_a_track_a_rank_with_a_slice_an_attempt() -> None:
    events = traced(history(failing_run()))
    for rank in ("rank 0", "rank 1"):
        assert [event["name"] for event in slices(events, rank)] == ["starting", "attempt 1", "starting", "attempt 2"]
    first = slices(events, "rank 1")[1]
    assert first["ts"] + first["dur"] == 4_500_000
    assert "RuntimeError: boom" in first["args"]["ended"]


def test_states_attempts_and_goodput_fill_the_clock() -> None:
    run = history(failing_run())
    events = traced(run)
    assert [event["name"] for event in slices(events, "attempts")] == ["attempt 1", "attempt 2"]
    assert [event["name"] for event in slices(events, "state") if event["dur"]][:3] == [
        "scheduling",
        "running",
        "scheduling",
    ]
    for track in ("goodput", "attempts"):
        found = slices(events, track)
        assert sum(event["dur"] for event in found) == 9_200_000
        assert all(one["ts"] + one["dur"] == other["ts"] for one, other in pairwise(found))


def test_failures_and_their_decisions_stand_on_a_track() -> None:
    events = traced(history(failing_run()))
    found = [event for event in events if event["ph"] == "i" and (event["pid"], event["tid"]) == (RUN, FAILURES)]
    assert [event["name"] for event in found] == ["rank 1 failed (user)", "decided to retry"]
    assert found[0]["args"]["where"] == "examples/digits.py:42 in train"


def test_checkpoints_last_from_their_order_to_their_commit() -> None:
    (event,) = slices(traced(checkpointed()), "checkpoints")
    assert (event["name"], event["args"]["index"], event["dur"]) == ("checkpoint_000000_1", 0, 100_000)


def test_reports_are_moments_and_metrics_counters() -> None:
    events = traced(history(finished_run(3)))
    reports = [event for event in events if event["name"].startswith("report ") and event["pid"] == RANKS]
    assert len(reports) == 6
    assert [event["args"] for event in events if event["ph"] == "C"] == [{"loss": 1.0}, {"loss": 0.5}, {"loss": 1 / 3}]


def test_nothing_is_no_trace() -> None:
    with pytest.raises(CannotRead):
        trace_bytes(history([]))
