"""One screen: what is folded says so, what matters stays, numbers do not change."""

from __future__ import annotations

import msgspec

from runfold.controller.effects import CAUSE_AWAITED_MAX_S
from runfold.events.config import CheckpointConfig, FailureConfig
from runfold.events.failures import ErrorInfo
from runfold.replay.render import render_timeline
from runfold.replay.rows import Row, Timeline
from runfold.replay.screen import SCREEN_ROWS_MAX, on_screen
from runfold.replay.timeline import timeline
from support.histories import failing_run, history
from support.runs import Run


def shown(run: Run) -> Timeline:
    return on_screen(timeline(history(run.bytes)))


def of_kind(rows: Timeline, kind: str) -> list[Row]:
    return [row for row in rows.rows if row.kind == kind]


def retried(times: int, *, alike: bool = True) -> Run:
    """A run that fails so often, with one report an attempt."""
    run = Run(2, failure=FailureConfig(max_failures=-1)).running()
    for k in range(times):
        run.says(run.reported(0, 0), run.reported(1, 0))
        run.says(run.failed(1, "boom" if alike or k % 2 else "bang"))
        run.says(run.exited(0, 1, asked=True, attempt=k + 1), run.exited(1, 1, attempt=k + 1))
        run.says(run.started(0), run.started(1))
    return run


def test_a_start_is_one_row_and_a_change_of_state_another() -> None:
    rows = on_screen(timeline(history(failing_run())))
    (first, *_) = of_kind(rows, "quiet")
    assert "placed on local (2)" in first.what
    assert "ranks 0-1 started" in first.what
    paths = [row.path for row in of_kind(rows, "state_changed")]
    assert ("running", "restarting", "scheduling") in paths
    assert len(rows.rows) < len(timeline(history(failing_run())).rows)


def test_numbers_are_those_of_the_whole_and_ranges_cover_them() -> None:
    whole, part = timeline(history(failing_run())), on_screen(timeline(history(failing_run())))
    covered = [number for row in part.rows for number in range(row.number, row.last_number + 1)]
    assert covered == [row.number for row in whole.rows]
    text = "\n".join(render_timeline(part))
    assert any(f"{row.number}-{row.last_number}" in text for row in part.rows if row.number != row.last_number)


def test_reports_and_checkpoints_between_them_are_one_row() -> None:
    run = Run(2, checkpoint=CheckpointConfig(num_to_keep=2)).running()
    for index in range(3):
        run.says(*(run.shard(rank, index) for rank in range(2)))
        run.says(run.sealed(f"checkpoint_{index:06d}_1"))
    (row,) = of_kind(shown(run), "reports")
    assert row.what == "6 reports, checkpoint checkpoint_000002_1 committed and 2 before it"
    assert (row.count, row.steps) == (6, (0, 20))


def test_many_attempts_that_failed_alike_are_one_row() -> None:
    rows = shown(retried(30))
    (row,) = of_kind(rows, "attempts")
    assert row.what == "attempts 3-29"
    assert "27 attempts with 54 reports that failed alike" in row.reason
    assert "RuntimeError: boom" in row.reason
    assert {1, 2, 30, 31} <= {row.attempt for row in rows.rows}
    assert len(rows.rows) <= SCREEN_ROWS_MAX


def test_attempts_that_failed_otherwise_are_rows_of_their_own_and_the_rest_is_counted() -> None:
    rows = shown(retried(30, alike=False))
    assert len(rows.rows) == SCREEN_ROWS_MAX
    (row,) = of_kind(rows, "left_out")
    assert "rows, shown with --full" in row.what
    assert [one.number for one in rows.rows] == sorted(one.number for one in rows.rows)


def test_waiting_shows_what_is_waited_for_now() -> None:
    run = Run(2)
    run.says(run.queued(ahead=3, free=0))
    run.says(run.queued(ahead=1, free=1))
    (row,) = of_kind(shown(run), "queued")
    assert row.reason == "2 slots needed, 1 free, 1 run ahead"


def test_failures_of_many_ranks_are_one_row_below_their_cause() -> None:
    run = Run(8, failure=FailureConfig(max_failures=1)).running()
    victims = [run.failed(rank, f"rank 3 is gone, said {rank}", "peer") for rank in range(8) if rank != 3]
    run.says(*victims[:2])
    run.waits(CAUSE_AWAITED_MAX_S)
    run.says(*victims[2:], run.failed(3, "the cause", attempt=1, ago_s=CAUSE_AWAITED_MAX_S + 0.3))
    rows = timeline(history(run.bytes)).rows
    place = next(k for k, row in enumerate(rows) if row.ranks == (3,) and row.kind == "rank_failed")
    below = rows[place + 1 : place + 3]
    assert [row.collateral for row in below] == [True, True]
    assert {rank for row in below for rank in row.ranks} == {0, 1, 2, 4, 5, 6, 7}
    assert rows[place].late_s is not None
    assert [row.late_s is not None for row in below] == [False, True]
    assert rows[place - 1].kind != "failure_decided"


def test_a_failure_that_was_passed_over_stays_where_it_was() -> None:
    error = ErrorInfo(type="X", message="y", kind="user")
    run = Run(2).running()
    run.says(msgspec.structs.replace(run.failed(0), error=error))
    rows = timeline(history(run.bytes)).rows
    assert [row.collateral for row in rows if row.kind == "rank_failed"] == [False]
