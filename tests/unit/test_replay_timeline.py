"""The timeline: what happened and what was decided on it, in rows a person can read."""

from __future__ import annotations

import json

from runfold.events.facts import RankExited
from runfold.events.failures import ErrorInfo
from runfold.replay.escape import to_json
from runfold.replay.timeline import Row, Timeline, timeline
from support.histories import Voice, beginning, decided, ending, failing_run, finished_run, history, reports


def of_kind(rows: Timeline, kind: str) -> list[Row]:
    return [row for row in rows.rows if row.kind == kind]


def test_changes_of_state_stand_with_before_after_reason_and_cause() -> None:
    rows = timeline(history(failing_run()))
    changes = [(row.n, row.before, row.after) for row in of_kind(rows, "state_changed")]
    assert changes == [
        (0, "initializing", "scheduling"),
        (4, "scheduling", "running"),
        (11, "running", "restarting"),
        (11, "restarting", "scheduling"),
        (12, "scheduling", "running"),
        (19, "running", "shutting_down"),
        (21, "shutting_down", "finished"),
    ]
    restarting = of_kind(rows, "state_changed")[2]
    assert "rank 1 failed first" in restarting.reason
    assert restarting.cause is not None
    assert (restarting.cause.n, restarting.cause.kind, restarting.cause.input) == (11, "rank_failed", 0)


def test_reports_are_folded_into_one_row() -> None:
    rows = of_kind(timeline(history(finished_run(200))), "reports")
    (row,) = rows
    assert (row.what, row.count, row.n, row.last_n) == ("400 reports", 400, 5, 204)
    assert (row.t, row.until_t, row.ranks) == (1.0, 100.5, (0, 1))
    assert "steps 0-199" in row.reason
    assert "loss=0.005" in row.reason


def test_a_row_after_a_stretch_states_the_gap_from_its_end() -> None:
    rows = timeline(history(finished_run(10))).rows
    place = next(k for k, row in enumerate(rows) if row.kind == "reports")
    assert rows[place + 1].gap_s == 1.5
    assert rows[0].gap_s == 0.0


def test_a_failure_stands_with_its_rank_and_traceback_once() -> None:
    rows = timeline(history(failing_run()))
    told = [row for row in rows.rows if row.error is not None]
    (row,) = told
    assert row.kind == "rank_failed"
    assert row.error is not None
    assert (row.error.rank, row.error.type, row.error.where) == (1, "RuntimeError", "examples/digits.py:42 in train")
    assert row.error.traceback is not None
    assert "line 42, in train" in row.error.traceback


def test_ranks_that_did_the_same_are_one_row() -> None:
    rows = timeline(history(failing_run()))
    assert [row.what for row in of_kind(rows, "rank_started")] == ["ranks 0-1 started", "ranks 0-1 started"]
    assert [(row.what, row.count) for row in of_kind(rows, "rank_returned")] == [("ranks 0-1 returned", 2)]


def test_a_rank_that_died_without_a_word_shows_its_last_lines() -> None:
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node)
    killed = RankExited(
        source="local", incarnation=1, number=4, attempt=1, rank=1, life=1, signal=9, last_lines="epoch 3\nkilled?\n"
    )
    rows = timeline(history(decided([*steps, (2.0, [killed])])))
    (row,) = of_kind(rows, "rank_exited")
    assert (row.what, row.output) == ("rank 1 was ended by SIGKILL", "epoch 3\nkilled?\n")


def test_the_failure_of_a_rank_without_a_word_stands_in_the_decision() -> None:
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node)
    steps.append((2.0, [node.exited(1, 3)]))
    (row,) = of_kind(timeline(history(decided(steps))), "failure_decided")
    assert row.error is not None
    assert (row.error.rank, row.error.kind) == (1, "exit")


def test_failures_that_followed_from_the_first_are_marked_as_such() -> None:
    pool, node = Voice("pool-local"), Voice("local")
    broken_peer = ErrorInfo(type="CollectivePeerError", message="rank 1 is gone", kind="peer")
    steps = beginning(pool, node)
    steps.append((2.0, [node.failed(0, broken_peer), node.failed(1)]))
    rows = of_kind(timeline(history(decided(steps))), "rank_failed")
    # The victim was heard of first, and stands below its cause all the same.
    assert [(row.ranks, row.collateral) for row in rows] == [((1,), False), ((0,), True)]


def test_every_row_can_be_read_by_a_program() -> None:
    rows = json.loads(to_json(timeline(history(failing_run()))))
    assert rows["run"] == "digits-7k2"
    assert {"n", "last_n", "t", "gap_s", "kind", "what", "reason", "before", "after", "cause"} <= rows["rows"][0].keys()


def test_a_broken_log_tells_what_can_be_believed_and_that_it_is_broken() -> None:
    lines = failing_run()
    rows = timeline(history([*lines[:6], *lines[7:]]))
    assert rows.entries == 6
    assert "entry 6 is missing" in rows.trouble


def test_an_empty_history_has_no_rows() -> None:
    assert timeline(history([])).rows == ()


def test_reports_between_other_things_are_stretches_of_their_own() -> None:
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node) + reports(node, 1.0, range(3))
    steps.append((2.5, [pool.capacity({"local": 4})]))
    steps += reports(node, 3.0, range(3, 5))
    rows = timeline(history(decided(steps + ending(pool, node, 9.0, 1, 5))))
    assert [row.what for row in of_kind(rows, "reports")] == ["6 reports", "4 reports"]
    assert [row.what for row in of_kind(rows, "capacity_changed")] == ["slots now: local 4"]
