"""Runs that change their size, lose nodes and replace replica groups: every question about them has its answer."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from runfold.events.config import FailureConfig, Timeouts
from runfold.replay.at import state_at
from runfold.replay.audit import audit
from runfold.replay.diff import diff_moments
from runfold.replay.history import History
from runfold.replay.perfetto import trace_bytes
from runfold.replay.render import render_story, render_timeline
from runfold.replay.show import render_snapshot
from runfold.replay.spans import stretches_of
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.replay.verify import verify
from runfold.replay.whatif import what_if
from support.histories import history
from support.runs import POOL, Run

SCHEMA = json.loads((Path(__file__).parents[1] / "support" / "chrome_trace.json").read_text(encoding="utf-8"))
NODES = ("node-a", "node-b")


def resized() -> Run:
    """More room, a dwell, a larger group."""
    run = Run((1, 4), nodes=("local",), joined=False, failure=FailureConfig(max_failures=3))
    run.join(POOL, "local")
    run.says(run.room(2)).running()
    run.says(run.room(4))
    run.waits(60.0)
    run.says(run.released())
    return run.running().finishing()


def taken_back() -> Run:
    """A notice, ranks that are gone with their node, a group elsewhere."""
    failure = FailureConfig(max_failures=1, max_preemption_failures=2)
    run = Run(2, nodes=NODES, failure=failure, timeouts=Timeouts(coalesce_s=0.0)).running()
    run.says(run.noticed("node-b", within_s=5.0, reason="spot"))
    run.waits(5.0)
    return run


def replaced() -> Run:
    """A replica group that fails while the other trains on."""
    run = Run(4, nodes=("local",), failure=FailureConfig(max_failures=3), replica_size=2).running().says()
    run.says(run.failed(3)).starts()
    return run.finishing()


PLAYS = {"resized": resized, "taken back": taken_back, "replaced": replaced}
SHOWN = {
    "resized": ("RESIZING", "resizing from 2 to 4 ranks"),
    "taken back": ("PREEMPTING", "node-b to be taken back in 5 s"),
    "replaced": ("decided to replace", "replica group 1 (2 ranks on local) begins its life 2"),
}


@pytest.fixture(params=PLAYS)
def play(request: pytest.FixtureRequest) -> tuple[str, History]:
    """A play by its name."""
    name: str = request.param
    return name, history(PLAYS[name]().bytes)


def test_the_story_tells_it(play: tuple[str, History]) -> None:
    name, run = play
    text = "\n".join([*render_story(story(run)), *render_timeline(timeline(run))])
    for part in SHOWN[name]:
        assert part in text


def test_every_moment_can_be_shown_and_compared(play: tuple[str, History]) -> None:
    _, run = play
    for entry in run.entries:
        assert list(render_snapshot(state_at(run, entry.n)))
    assert diff_moments(run, "0", str(run.head.n)).changes


def test_it_is_decided_again_as_it_was_and_audits_clean(play: tuple[str, History]) -> None:
    _, run = play
    assert verify(run).outcome == "agrees"
    assert audit(run).findings == ()
    assert what_if(run, {"failure.max_failures": 3}) is not None


def test_its_time_is_whole_and_its_trace_valid(play: tuple[str, History]) -> None:
    name, run = play
    stretches = stretches_of(run)
    assert sum(one.length for one in stretches) == round(run.entries[-1].t * 1_000_000)
    uses = {one.use for one in stretches}
    if name == "resized":
        assert "resize" in uses
        assert "recovery" not in uses
    trace = json.loads(trace_bytes(run))
    jsonschema.validate(trace, SCHEMA)
    if name == "replaced":
        lives = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == 3]
        assert any("life 2" in name for name in lives), lives


def test_a_moment_shows_a_notice_and_what_there_is_room_for() -> None:
    run = Run(2, nodes=NODES, failure=FailureConfig(max_preemption_failures=2)).running()
    run.says(run.noticed("node-b", within_s=50.0, reason="spot"))
    text = "\n".join(render_snapshot(state_at(history(run.bytes), run.state.n)))
    assert "node-b to be taken back at" in text
    grown = Run((1, 4), nodes=("local",), joined=False)
    grown.join(POOL, "local")
    grown.says(grown.room(3)).running()
    assert "room for 3" in "\n".join(render_snapshot(state_at(history(grown.bytes), grown.state.n)))
