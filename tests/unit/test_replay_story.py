"""The story: outcome, first cause, decision, and what is left of each budget."""

from __future__ import annotations

import msgspec
import pytest

from runfold.replay.errors import CannotRead
from runfold.replay.story import story
from support.histories import Voice, beginning, decided, errored_run, failing_run, finished_run, history


def test_a_run_that_was_tried_again_tells_why() -> None:
    told = story(history(failing_run()))
    assert (told.run, told.state, told.ended, told.attempts, told.num_workers) == ("digits-7k2", "finished", True, 2, 2)
    assert (told.duration_s, told.reports) == (9.2, 24)
    first = told.first_cause
    assert first is not None
    assert (first.n, first.attempt, first.decision) == (11, 1, "retry")
    assert (first.cause.rank, first.cause.node, first.cause.message) == (1, "local", "boom")
    assert "worker failure 1 of 1" in first.reason


def test_what_is_left_of_each_budget() -> None:
    left = {budget.name: (budget.spent, budget.limit, budget.left) for budget in story(history(failing_run())).budgets}
    assert left == {"worker": (1, 1, 0), "startup": (0, -1, None), "preemption": (0, -1, None), "hang": (0, 1, 1)}


def test_a_run_that_ended_in_error_tells_every_failure() -> None:
    told = story(history(errored_run()))
    assert (told.state, [setback.decision for setback in told.setbacks]) == ("errored", ["retry", "raise"])
    assert "the run ends" in told.reason
    assert (told.budgets[0].spent, told.budgets[0].left) == (1, 0)


def test_a_run_that_goes_on_has_not_ended() -> None:
    told = story(history(finished_run()[:8]))
    assert (told.state, told.ended, told.setbacks) == ("running", False, ())


def test_warnings_of_the_job_are_told() -> None:
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node)
    t, (taken, started) = steps[0]
    warned = msgspec.structs.replace(taken, warnings=("RAY_TRAIN_X is set and not read",))
    assert story(history(decided([(t, [warned, started])]))).warnings == ("RAY_TRAIN_X is set and not read",)


def test_nothing_has_no_story() -> None:
    with pytest.raises(CannotRead, match="no entry"):
        story(history([]))
