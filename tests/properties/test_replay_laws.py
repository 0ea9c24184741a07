"""The laws of replay under random plays: whatever was said, the log tells it, sums up, and breaks no rule."""

from __future__ import annotations

from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from runfold.events.config import FailureConfig
from runfold.replay.answers import render_what_if
from runfold.replay.at import AtClock, state_at
from runfold.replay.audit import audit
from runfold.replay.goodput import Goodput, goodput
from runfold.replay.growing import Growing
from runfold.replay.history import History
from runfold.replay.incidents import incidents
from runfold.replay.render import render_story, render_timeline
from runfold.replay.screen import SCREEN_ROWS_MAX, on_screen
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.replay.uses import USES, micros
from runfold.replay.verify import verify
from runfold.replay.whatif import what_if
from support.histories import history
from support.plays import CONFIGS, PLAYS, SIZES, Line, Size, a_run, inputs_of

Play = list[list[Line]]
EXCUSED = ("single-writer", "write-ahead")
"""Entries of a play are signed by one controller whoever took over, and its sources speak of what nobody ordered."""


def logged(size: Size, config: FailureConfig, play: Play) -> History:
    run = a_run(size, config)
    for lines in play:
        waits = sum(line[2] for line in lines if line[0] == "wait")
        run.says(*inputs_of(run, lines), after_s=0.1 + 2.0 * waits)
    return history(run.bytes)


def sums_up(found: Goodput) -> bool:
    """Whether the parts are the whole, in whole microseconds."""
    parts = {name: micros(value) for name, value in found.uses_s.items()}
    of_attempts = sum(micros(value) for attempt in found.attempts for value in attempt.uses_s.values())
    assert parts.keys() == USES.keys()
    assert all(value >= 0 for value in parts.values())
    return sum(parts.values()) == of_attempts == micros(found.until_t) - micros(found.since_t) == micros(found.clock_s)


@settings(max_examples=150)
@given(SIZES, CONFIGS, PLAYS)
def test_what_the_controller_writes_breaks_no_rule(size: Size, config: FailureConfig, play: Play) -> None:
    run = logged(size, config, play)
    assert [finding for finding in audit(run).findings if finding.rule not in EXCUSED] == []
    assert verify(run).outcome == "agrees"


@settings(max_examples=200)
@given(SIZES, CONFIGS, PLAYS, st.floats(-1, 40), st.floats(-1, 40))
def test_goodput_sums_exactly_to_the_clock(
    size: Size, config: FailureConfig, play: Play, since: float, until: float
) -> None:
    run = logged(size, config, play)
    whole = goodput(run)
    assert sums_up(whole)
    assert whole.clock_s == run.entries[-1].t
    low, high = (AtClock(t=moment) for moment in sorted((abs(since), abs(until))))
    part = goodput(run, low, high)
    assert sums_up(part)
    rest = (goodput(run, None, low), goodput(run, AtClock(t=part.until_t), None))
    if part.until_t > part.since_t:
        for name, value in whole.uses_s.items():
            pieces = (part, *rest)
            assert sum(micros(piece.uses_s[name]) for piece in pieces) == micros(value)


LOST_TWICE: Final[list[list[Line]]] = [
    [("go on", 0, 0), ("lost", 0, 0)],
    *([("go on", 0, 0)] for _ in range(8)),
    [("lost", 0, 0)],
    [("lost", 0, 0)],
]
"""What is told twice, in two entries, is one row; a cause may be the second."""


@settings(max_examples=100)
@example(1, FailureConfig(max_failures=-1, backoff_s=0.0), LOST_TWICE)
@given(SIZES, CONFIGS, PLAYS)
def test_every_log_is_told_and_its_causes_are_linked(size: Size, config: FailureConfig, play: Play) -> None:
    run = logged(size, config, play)
    rows = timeline(run)
    assert [row.number for row in rows.rows] == list(range(1, len(rows.rows) + 1))
    for row in rows.rows:
        if row.cause is not None and row.cause.row is not None:
            assert 1 <= row.cause.row <= len(rows.rows)
            assert rows.rows[row.cause.row - 1].n <= row.cause.n <= rows.rows[row.cause.row - 1].last_n
        assert row.gap_s >= 0
    shown = on_screen(rows)
    assert len(shown.rows) <= SCREEN_ROWS_MAX
    assert all(line for line in render_timeline(shown))
    assert all(line for line in render_story(story(run)))
    assert incidents(run) == story(run).incidents


@settings(max_examples=60)
@given(SIZES, CONFIGS, PLAYS)
def test_a_timeline_that_grows_tells_the_same(size: Size, config: FailureConfig, play: Play) -> None:
    run = logged(size, config, play)
    growing = Growing()
    rows = [row for entry in run.entries for row in growing.take(entry)] + list(growing.flush())
    told = [row for row in timeline(run).rows if not (row.collateral or row.late_s is not None)]
    assert sum(row.kind == "state_changed" for row in rows) == sum(row.kind == "state_changed" for row in told)
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert growing.entries == len(run.links)


@settings(max_examples=40)
@given(SIZES, CONFIGS, PLAYS, st.integers(0, 30))
def test_what_is_of_one_rank_or_attempt_is_part_of_the_whole(
    size: Size, config: FailureConfig, play: Play, which: int
) -> None:
    run = logged(size, config, play)
    numbers = {row.number for row in timeline(run).rows}
    for part in (timeline(run, rank=which % 3), timeline(run, attempt=which % 4), timeline(run, since_t=which / 2)):
        assert {row.number for row in part.rows} <= numbers
    assert state_at(run, which % len(run.links)).n == which % len(run.links)


@settings(max_examples=80)
@given(SIZES, CONFIGS, PLAYS, st.integers(-1, 4))
def test_another_course_begins_only_where_a_decision_differs(
    size: Size, config: FailureConfig, play: Play, failures: int
) -> None:
    run = logged(size, config, play)
    same = what_if(run, {})
    assert (same.parted, same.details) == (None, 0)
    other = what_if(run, {"failure.max_failures": failures})
    if failures == config.max_failures:
        assert other.parted is None
    if other.parted is not None:
        assert other.parted.recorded != other.parted.instead
        assert other.up_to.until_t <= other.parted.t
    assert 0 <= other.informative_until < len(run.links)
    assert all(render_what_if(other))
