"""What if: where another setting would have led elsewhere, what it comes to, and where the facts end."""

from __future__ import annotations

import pytest

from runfold.events.base import Json
from runfold.events.config import CheckpointConfig, FailureConfig, Timeouts
from runfold.events.state import Restarting
from runfold.replay.answers import render_what_if
from runfold.replay.errors import BadSetting, CannotRead
from runfold.replay.history import History
from runfold.replay.whatif import what_if
from support.histories import errored_run, failing_run, finished_run, history
from support.runs import POOL, Run


def failing() -> History:
    return history(failing_run())


def elastic() -> History:
    """An elastic run with room for 3 ranks, and for 4 too late for its dwell."""
    run = Run((1, 4), joined=False).join(POOL, "local")
    run.says(run.room(3)).running()
    run.says(run.room(4)).waits(30.0)
    run.finishing().says(run.released())
    return history(run.bytes)


def saved_then_lost() -> History:
    """A run that commits a checkpoint, fails, and ends for want of a budget."""
    run = Run(2, checkpoint=CheckpointConfig(), failure=FailureConfig(max_failures=0)).running()
    run.says(*(run.shard(rank, 0) for rank in range(2)), after_s=10.0)
    run.says(run.sealed("checkpoint_000000_1"))
    run.waits(5.0)
    run.says(run.failed(1))
    run.says(run.released())
    return history(run.bytes)


def test_a_smaller_budget_would_have_ended_the_run_and_says_what_that_saves_and_costs() -> None:
    found = what_if(failing(), {"failure.max_failures": 0})
    parted = found.parted
    assert parted is not None
    assert (parted.n, parted.t, parted.before_it, parted.state) == (11, 4.5, False, "running")
    assert "rank 1 failed (user): RuntimeError: boom" in parted.on
    assert "worker failure 1 of 1" in parted.recorded[0].reason
    assert "no worker failure is allowed" in parted.instead[0].reason
    assert found.ends
    assert found.time_saved_s == pytest.approx(9.2 - 4.5)
    assert found.work_lost_s == pytest.approx(9.0 - 5.0)
    assert found.work_saved_s == 0.0
    assert (found.informative_until, "nobody saw" in found.why) == (11, True)


def test_a_larger_budget_would_have_gone_on_and_kept_what_was_saved() -> None:
    found = what_if(saved_then_lost(), {"failure.max_failures": 3})
    assert found.parted is not None
    assert not found.ends
    assert [item.kind for item in found.parted.instead][:2] == ["failure_decided", "state_changed"]
    assert "worker failure 1 of 3" in found.parted.instead[0].reason
    assert found.work_saved_s == pytest.approx(10.0)
    assert found.up_to.uses_s["wasted_progress"] == pytest.approx(5.2)
    assert (found.time_saved_s, found.work_lost_s) == (0.0, 0.0)
    assert any("10.0 s of kept work would not have been given up" in line for line in render_what_if(found))


def test_a_budget_that_is_never_reached_changes_details_alone() -> None:
    found = what_if(failing(), {"failure.max_failures": 5})
    assert (found.parted, found.details, found.ends) == (None, 1, False)
    assert found.informative_until == 21
    assert found.after is None
    assert any("never: every decision would have been the same; 1 entry" in line for line in render_what_if(found))


@pytest.mark.parametrize("lines", [finished_run(), failing_run(), errored_run()])
def test_with_nothing_changed_no_run_parts(lines: list[bytes]) -> None:
    found = what_if(history(lines), {})
    assert (found.parted, found.details, found.settings) == (None, 0, ())


def test_a_back_off_would_have_waited() -> None:
    found = what_if(failing(), {"failure.backoff_s": 3})
    assert found.parted is not None
    assert found.parted.n == 11
    assert "in 3 s at the earliest" in found.parted.instead[0].reason


def test_a_timer_that_would_have_been_due_earlier_parts_before_the_entry() -> None:
    found = what_if(failing(), {"timeouts.start_timeout_s": 0.05})
    parted = found.parted
    assert parted is not None
    assert (parted.before_it, parted.recorded, parted.n) == (True, (), 3)
    assert parted.t == pytest.approx(0.25)
    assert "timer start was due" in parted.on[0]
    assert "start_timeout_s" in parted.instead[0].reason
    assert found.informative_until == 2


def test_a_timer_that_would_not_have_been_due_yet_parts_where_it_fired() -> None:
    run = Run(2, failure=FailureConfig(controller_failure_limit=0), timeouts=Timeouts(start_timeout_s=5.0))
    run.says(run.placed())
    run.waits(6.0)
    found = what_if(history(run.bytes), {"timeouts.start_timeout_s": 60})
    assert found.parted is not None
    assert (found.parted.recorded[0].kind, found.parted.instead) == ("failure_decided", ())
    assert any(line.startswith("instead   nothing") for line in render_what_if(found))


def test_another_size_parts_at_once_and_its_facts_are_nobodys() -> None:
    found = what_if(failing(), {"scaling.num_workers": [1, 4]})
    assert found.parted is not None
    assert (found.parted.n, found.informative_until) == (0, 0)
    assert "this log does not tell: the pool was not asked" in found.why
    assert found.parted.instead[-1].kind == "controller_changed", "no attempt begins before the pool has spoken"


def test_other_bounds_of_an_elastic_run_part_where_its_size_would_have_been_another() -> None:
    found = what_if(elastic(), {"scaling.num_workers": [1, 2]})
    assert found.parted is not None
    assert (found.parted.n, found.informative_until) == (2, 2)
    assert "attempt 1: 2 ranks" in found.parted.instead[-1].reason
    assert "attempt 1: 3 ranks" in found.parted.recorded[-1].reason
    assert what_if(elastic(), {"scaling.num_workers": [2, 3]}).parted is None
    later = what_if(elastic(), {"scaling.elastic_resize_monitor_interval_s": 10.0})
    assert later.parted is not None
    assert later.parted.before_it
    assert "resizing from 3 to 4" in later.parted.instead[-1].reason


def test_what_the_decider_does_not_read_changes_no_decision_and_says_so() -> None:
    found = what_if(failing(), {"config.lr": 0.5})
    assert (found.parted, found.informative_until) == (None, 0)
    assert "from entry 1 on the facts are of a run without it" in found.why
    assert any(line.startswith("parted    nobody knows: not to be told by") for line in render_what_if(found))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"failure.max_failures": "many"}, r"failure\.max_failures"),
        ({"failure.no_such": 1}, r"failure\.no_such: unknown field"),
        ({"nothing.at.all": 1}, "has no 'nothing'"),
        ({"scaling.num_workers": 0}, "num_workers"),
        ({"config.x": 10**5000}, "digits"),
    ],
)
def test_a_setting_that_is_none_is_refused_by_its_path(settings: dict[str, Json], match: str) -> None:
    with pytest.raises(BadSetting, match=match):
        what_if(failing(), settings)


def test_a_log_without_a_beginning_has_no_other_course() -> None:
    with pytest.raises(CannotRead):
        what_if(history([]), {})


def test_a_run_in_back_off_is_followed_through_its_timer() -> None:
    run = Run(2, failure=FailureConfig(max_failures=2, backoff_s=2.0)).running()
    run.says(run.failed(1))
    assert isinstance(run.state.phase, Restarting)
    run.says(run.released())
    run.waits(3.0)
    assert what_if(history(run.bytes), {"failure.max_failures": 9}).parted is None
