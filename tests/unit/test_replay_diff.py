"""Two moments of a run, or two runs, beside each other."""

from __future__ import annotations

import pytest

from runfold.replay.answers import render_moments, render_runs
from runfold.replay.diff import diff_moments, diff_runs
from runfold.replay.differ import changes
from runfold.replay.errors import BadMoment, CannotRead
from runfold.replay.look import Look
from support.histories import errored_run, failing_run, finished_run, history


def test_two_moments_show_what_changed_and_what_happened_between() -> None:
    found = diff_moments(history(failing_run()), "10", "11")
    changed = {change.path: (change.before, change.after) for change in found.changes}
    assert changed["attempt"] == (1, 2)
    assert changed["budgets.worker.spent"] == (0, 1)
    assert changed["failure.error.message"] == (None, "boom")
    assert {"rank_failed", "failure_decided", "attempt_started"} <= {row.kind for row in found.rows}
    assert (found.a.n, found.b.n, found.reports) == (10, 11, 0)


def test_the_earlier_moment_stands_first_and_times_are_moments_too() -> None:
    found = diff_moments(history(failing_run()), "+9.5", "4")
    assert (found.a.n, found.b.n, found.reports) == (4, 21, 24)
    assert diff_moments(history(failing_run()), "4", "4").changes == ()


def test_a_single_value_and_several_are_one_change() -> None:
    (change,) = changes({"scaling": {"num_workers": 4}}, {"scaling": {"num_workers": (1, 6)}})
    assert (change.path, change.before, change.after) == ("scaling.num_workers", 4, [1, 6])
    (back,) = changes([{"size": (1, 6)}], [{"size": 4}])
    assert (back.path, back.before, back.after) == ("[0].size", [1, 6], 4)


def test_a_moment_that_is_none_is_said_to_be() -> None:
    with pytest.raises(BadMoment):
        diff_moments(history(failing_run()), "4", "soon")


def test_two_runs_part_at_their_first_other_decision() -> None:
    found = diff_runs(history(failing_run()), history(errored_run()))
    assert found.configuration == ()
    assert found.parted is not None
    left, right = found.parted.left, found.parted.right
    assert left is not None
    assert right is not None
    assert left.decided.what == "running → shutting_down"
    assert (right.n, right.decided.kind) == (7, "failure_decided")
    assert "rank 1 failed (user): RuntimeError: boom" in right.on
    assert (found.left.state, found.right.state) == ("finished", "errored")


def test_a_run_and_itself_never_part() -> None:
    run = history(failing_run())
    found = diff_runs(run, run)
    assert (found.parted, found.configuration, found.alike > 5) == (None, (), True)
    assert "  they never part" in list(render_runs(found))


def test_a_run_that_goes_on_parts_where_the_other_decides_no_more() -> None:
    found = diff_runs(history(finished_run()), history(finished_run()[:8]))
    assert found.parted is not None
    assert found.parted.right is None
    assert any("decides nothing more" in line for line in render_runs(found))


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(CannotRead):
        diff_runs(history([]), history(finished_run()))


def test_lines_leave_out_pointers_unless_asked_for_all() -> None:
    found = diff_moments(history(failing_run()), "10", "11")
    short, full = list(render_moments(found)), list(render_moments(found, Look(full=True)))
    assert not any(line.startswith("  failure.cause") for line in short)
    assert any(line.startswith("  failure.cause") for line in full)
    assert any("attempt: 1 → 2" in line for line in short)


def test_values_are_compared_leaf_by_leaf() -> None:
    found = changes({"a": {"b": [1, 2]}, "c": 1}, {"a": {"b": [1, 3, 4]}})
    assert [(one.path, one.before, one.after) for one in found] == [
        ("a.b[1]", 2, 3),
        ("c", 1, None),
        ("a.b[2]", None, 4),
    ]
