"""The laws of elastic runs under random plays: sizes stay in bounds, and groups keep theirs for the dwell."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from runfold.events.config import FailureConfig, Timeouts
from runfold.events.entry import AnyInput
from runfold.events.requests import ResizeRun
from runfold.events.state import Running
from runfold.events.transitions import AttemptStarted, ResizePlanned, StateChanged
from support.plays import CONFIGS, NODES, Line, inputs_of
from support.runs import Run

Play = list[list[Line]]
ON: st.SearchStrategy[list[Line]] = st.just([("on", 0, 0)])
SAID = (
    "capacity",
    "capacity",
    "capacity",
    "report",
    "shard",
    "sealed",
    "fail",
    "lost",
    "notice",
    "cancel",
    "resize",
    "wait",
    "wait",
)
ONE = st.tuples(st.sampled_from(SAID), st.integers(0, 3), st.integers(0, 5))
PLAYS = st.lists(st.one_of(ON, ON, st.lists(ONE, min_size=1, max_size=2)), min_size=8, max_size=40)
"""The run is brought on, and does not return: what comes between is about its size."""
BOUNDS = st.sampled_from([(1, 3), (2, 2), (2, 3), (1, 6)])


def inputs(run: Run, lines: list[Line]) -> list[AnyInput]:
    if lines == [("on", 0, 0)]:
        return [] if isinstance(run.state.phase, Running) else inputs_of(run, [("go on", 0, 0)])
    return inputs_of(run, lines)


@settings(max_examples=300)
@given(BOUNDS, CONFIGS, PLAYS, st.sampled_from([0.0, 1.0, 60.0]))
def test_sizes_stay_in_bounds_and_keep_their_dwell(
    size: tuple[int, int], config: FailureConfig, play: Play, dwell_s: float
) -> None:
    timeouts = Timeouts(start_timeout_s=8.0, import_timeout_s=8.0, resize_wait_s=4.0)
    run = Run(size, nodes=NODES, failure=config, timeouts=timeouts, dwell_s=dwell_s)
    for lines in play:
        waits = sum(line[2] for line in lines if line[0] == "wait")
        run.says(*inputs(run, lines), after_s=0.1 + 8.0 * waits)
        event(f"{run.name}")
    low, high = size
    began_t, asked = 0.0, False
    for entry in run.entries:
        asked = asked or any(isinstance(item, ResizeRun) for item in entry.inputs)
        for said in entry.transitions:
            if isinstance(said, AttemptStarted | ResizePlanned):
                assert low <= said.num_workers <= high
            if isinstance(said, StateChanged) and said.to_state == "running":
                began_t, asked = entry.t, False
            elif isinstance(said, ResizePlanned) or (isinstance(said, StateChanged) and said.to_state == "resizing"):
                waiting = isinstance(said, StateChanged) and said.from_state == "scheduling"
                assert asked or waiting or entry.t >= began_t + dwell_s - 1e-6, said.reason
