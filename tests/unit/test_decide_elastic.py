"""Elastic runs: sizes follow the room in the pool, within bounds, with a dwell and a checkpoint before a change."""

import pytest

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.events.config import FailureConfig
from runfold.events.requests import ResizeRun
from runfold.events.state import Restarting
from runfold.events.transitions import (
    AttemptStarted,
    FailureDecided,
    RequestAccepted,
    ResizeDropped,
    ResizePlanned,
    StateChanged,
    TaskOrdered,
)
from support.elastic import DWELL_S, changed_again, commits, elastic, planned, reported
from support.runs import AT, POOL, Run

NODES = ("node-a", "node-b")


# --- before there is a group


def test_given_no_word_of_the_pool_then_the_run_waits_and_asks_to_be_told() -> None:
    run = Run((2, 4), joined=False)
    wish = assignment(run.state, run.head)
    assert (run.name, run.wake_at) == ("initializing", None)
    assert (wish.want, wish.room_for, wish.resources) == ("stop", 4, {"CPU": 1.0})


def test_given_a_pool_that_has_joined_and_said_nothing_then_its_word_is_waited_for() -> None:
    run = Run((2, 4), joined=False).join(POOL)
    assert status(run.state, run.head, AT).waiting == "the word of pool local on what it has room for"


def test_given_a_fixed_run_then_it_asks_to_be_told_only_when_nodes_may_be_excluded() -> None:
    assert assignment((run := Run(2)).state, run.head).room_for == 0
    run = Run(2, failure=FailureConfig(node_exclude_after=2))
    assert assignment(run.state, run.head).room_for == 2


@pytest.mark.parametrize(("fits", "size"), [(2, 2), (3, 3), (4, 4), (9, 4)])
def test_given_room_then_the_first_attempt_has_as_many_ranks_as_fit(fits: int, size: int) -> None:
    run = elastic(2, 4, fits=fits)
    assert run.path == ["initializing>scheduling"]
    assert run.the(AttemptStarted).num_workers == size


def test_given_less_room_than_min_then_it_waits_without_a_timer_until_there_is_more() -> None:
    run = elastic(2, 4, fits=1)
    assert (run.name, run.wake_at, run.said) == ("initializing", None, ())
    assert status(run.state, run.head, AT).waiting == "room for 2 ranks at least: there is room for 1"
    changed_again(run, 2)
    assert run.the(AttemptStarted).num_workers == 2


def test_given_places_that_are_gone_before_they_were_had_then_fewer_are_asked_for() -> None:
    run = changed_again(elastic(fits=4), 3)
    assert run.path == ["scheduling>resizing"]
    assert run.the(StateChanged).reason == "4 ranks have no room any more: asking for 3 ranks: room for 3"
    run.says(run.released())
    assert (run.path, run.group.num_workers) == (["resizing>scheduling"], 3)
    assert all(budget.spent == 0 for budget in run.state.budgets.values())


def test_given_a_group_that_waits_for_places_when_fewer_than_min_fit_then_it_waits_on() -> None:
    run = changed_again(elastic(2, 4), 1)
    assert run.name == "scheduling"
    changed_again(run, 4)
    assert run.name == "scheduling"
    assert run.running().group.num_workers == 4


def test_given_a_group_with_places_when_there_is_less_room_then_it_starts_all_the_same() -> None:
    run = elastic(fits=4).places()
    assert changed_again(run, 2).name == "scheduling"


# --- a running group


def test_given_more_room_then_the_group_keeps_its_size_for_the_dwell() -> None:
    run = elastic(fits=2).running()
    since_t = run.t
    changed_again(run, 4)
    assert run.said == ()
    assert run.wake_at == pytest.approx(since_t + DWELL_S)
    shown = status(run.state, run.head, AT).timeouts["elastic_resize_monitor_interval_s"]
    assert shown.due_t == pytest.approx(since_t + DWELL_S)
    run.waits(DWELL_S)
    assert run.path == ["running>resizing"]
    assert run.the(StateChanged).reason == (
        "resizing from 2 to 4 ranks: the pool has room for 4; gain: +100% ranks; cost: a restart, and nothing done so "
        "far"
    )
    run.says(run.released())
    assert run.running().group.num_workers == 4
    assert run.wake_at is None


def test_given_the_same_room_then_nothing_is_waited_for() -> None:
    run = changed_again(elastic(fits=4).running(), 6)
    assert (run.said, run.wake_at) == ((), None)


def test_given_less_room_than_min_while_running_then_the_group_is_left_alone() -> None:
    run = changed_again(elastic(2, 4).running(), 1)
    assert (run.said, run.wake_at) == ((), None)


def test_given_the_capacity_goes_back_within_the_dwell_then_nothing_was_ever_planned() -> None:
    run = elastic(fits=2).running()
    changed_again(run, 4)
    changed_again(run, 2)
    assert run.waits(DWELL_S).said == ()
    assert run.wake_at is None


def test_given_reports_without_a_checkpoint_then_one_is_asked_for_before_the_resize() -> None:
    run = planned()
    plan = run.the(ResizePlanned)
    assert run.name == "running"
    assert (plan.num_workers, plan.index) == (4, 0)
    assert plan.deadline_t == pytest.approx(run.t + 60.0)
    assert plan.reason == (
        "resizing from 2 to 4 ranks: the pool has room for 4; gain: +100% ranks; cost: a restart, and 1 report done "
        "again, for there is no checkpoint yet; the ranks are asked for a checkpoint first, for at most 60 s"
    )
    assert run.entries[plan.cause.entry or 0].inputs[plan.cause.input or 0].__struct_config__.tag == "capacity_changed"
    assert run.wake_at == pytest.approx(plan.deadline_t)
    work = assignment(run.state, run.head).job
    assert work is not None
    assert work.wanted == f"resize-{run.state.n}"
    assert "resize_wait_s" in status(run.state, run.head, AT).timeouts


def test_given_the_checkpoint_stands_then_the_group_is_resized_at_once() -> None:
    run = commits(planned(), 1)
    assert run.path == ["running>resizing"]
    assert run.the(StateChanged).reason.endswith("nothing since checkpoint_000001_1; checkpoint_000001_1 stands")
    assert run.state.elastic.plan is None


def test_given_no_checkpoint_in_time_then_the_group_is_resized_without_one() -> None:
    run = planned().waits(60.0)
    assert run.path == ["running>resizing"]
    assert "no checkpoint within timeouts.resize_wait_s (60 s): 1 report done again" in run.the(StateChanged).reason


def test_given_nothing_unsaved_then_no_checkpoint_is_asked_for() -> None:
    run = commits(reported(), 1)
    changed_again(run, 4)
    run.waits(DWELL_S)
    assert run.path == ["running>resizing"]
    assert run.none(ResizePlanned)


def test_given_a_plan_when_the_room_is_gone_then_it_is_dropped_and_the_dwell_begins_again() -> None:
    run = changed_again(planned(), 2)
    dropped = run.the(ResizeDropped)
    assert dropped.reason == "the group keeps its 2 ranks: 4 ranks are not to be had, or not wanted, any more"
    assert run.wake_at is None
    work = assignment(run.state, run.head).job
    assert work is not None
    assert work.wanted is None
    at_t = run.t
    changed_again(run, 4)
    assert run.wake_at == pytest.approx(at_t + DWELL_S)


def test_given_a_plan_when_the_room_changes_then_the_newest_size_is_taken() -> None:
    run = changed_again(planned(), 3)
    assert run.said == ()
    assert commits(run, 1).the(StateChanged).num_workers == 3


def test_given_a_plan_when_a_rank_fails_then_the_restart_takes_the_size_that_fits() -> None:
    run = planned()
    run.says(run.failed(0))
    assert run.path == ["running>restarting"]
    assert run.the(FailureDecided).reason.endswith("starting again on new places")
    assert run.state.elastic.plan is None
    run.says(run.released())
    assert (run.path, run.group.num_workers) == (["restarting>scheduling"], 4)


def test_given_resizing_when_the_room_changes_then_what_fits_when_it_starts_counts() -> None:
    run = elastic(fits=2).running()
    changed_again(run, 4)
    run.waits(DWELL_S)
    changed_again(run, 3)
    assert run.says(run.released()).the(AttemptStarted).num_workers == 3


def test_given_resizing_when_too_little_is_left_then_it_waits_for_more() -> None:
    run = elastic(2, 4, fits=3).running()
    changed_again(run, 4)
    run.waits(DWELL_S)
    changed_again(run, 1)
    run.says(run.released())
    assert (run.name, run.wake_at) == ("resizing", None)
    assert changed_again(run, 2).the(AttemptStarted).num_workers == 2


# --- failures


def test_given_a_failure_with_the_same_room_then_the_places_are_kept() -> None:
    run = elastic(fits=2).running()
    assert run.says(run.failed(0)).the(AttemptStarted).kept


def test_given_the_loss_of_all_nodes_then_it_waits_and_goes_on_when_one_returns() -> None:
    run = elastic(1, 4, fits=2, nodes=NODES)
    run.running()
    run.says(run.runner_lost("node-a"), run.runner_lost("node-b"), run.room(0))
    assert isinstance(run.state.phase, Restarting)
    run.says(run.released())
    assert (run.name, run.wake_at) == ("restarting", None)
    assert run.waits(3600.0).name == "restarting"
    changed_again(run, 1)
    assert (run.path, run.group.num_workers) == (["restarting>scheduling"], 1)
    assert run.state.budgets["worker"].spent == 1


def test_given_nodes_about_to_be_taken_back_then_they_are_not_counted() -> None:
    run = Run((1, 4), nodes=NODES, joined=False).join(POOL, *NODES)
    run.says(run.room(node_a=2, node_b=2)).running()
    assert run.group.num_workers == 4
    run.says(run.noticed("node-b", within_s=5.0)).waits(5.0)
    assert run.the(FailureDecided).budget == "preemption"
    run.says(run.room(node_a=2))
    run.says(run.released())
    assert run.group.num_workers == 2


# --- what is asked for


def test_given_a_wish_for_another_size_then_the_dwell_is_not_waited_for() -> None:
    run = reported(4)
    run.says(ResizeRun(id="r1", num_workers=2, by="ada"))
    assert run.the(RequestAccepted).reason == "2 ranks from the next start of the group on; ada asked for it"
    assert run.the(ResizePlanned).num_workers == 2
    run = commits(run, 1)
    assert "from 4 to 2 ranks: as asked for, with room for 4; -50% ranks" in run.the(StateChanged).reason
    run.says(run.released())
    assert run.running().group.num_workers == 2
    assert changed_again(run, 9).wake_at is None, "the wish stays one"


def test_given_a_wish_for_more_than_fits_then_it_grows_when_there_is_room() -> None:
    run = elastic(1, 4, fits=2).running()
    assert run.says(ResizeRun(id="r1", num_workers=3)).name == "running"
    changed_again(run, 8)
    assert run.the(StateChanged).num_workers == 3


def test_given_a_smaller_wish_from_before_then_the_size_grows_back_to_it_alone() -> None:
    run = elastic(1, 4, fits=4)
    run.says(ResizeRun(id="r1", num_workers=3))
    assert run.path == ["scheduling>resizing"]
    run.says(run.released()).running()
    run.says(run.failed(0), run.room(2))
    run.says(run.released()).running()
    assert run.group.num_workers == 2
    changed_again(run, 8).waits(DWELL_S)
    assert "room for 4, and 3 were asked for" in run.the(StateChanged).reason


def test_given_a_gate_then_it_is_asked_about_the_new_size() -> None:
    run = Run((1, 4), gates={"before_controller_execute_resize_decision": "fail"})
    asked = run.the(TaskOrdered).task.arguments
    assert asked["hook"] == "before_controller_execute_resize_decision"
    assert asked["arguments"] == {"attempt": 1, "num_workers": 4, "decision": "resize"}


# --- nodes that go and come back


def test_given_a_node_that_was_taken_back_when_it_is_there_again_then_it_is_used() -> None:
    run = Run((1, 4), nodes=NODES, joined=False).join(POOL, *NODES)
    run.says(run.room(node_a=1, node_b=1)).running()
    run.says(run.noticed("node-b", within_s=0.0), run.room(node_a=1), run.runner_lost("node-b")).waits(5.0)
    run.says(run.released()).waits(5.0)
    assert (run.name, run.group.num_workers) == ("scheduling", 1)
    assert assignment(run.state, run.head).excluded_nodes == ()
    run.says(run.placed(1)).says(run.ready("node-a")).starts()
    run.says(run.room(node_a=1, node_b=1)).waits(DWELL_S)
    assert (run.the(StateChanged).num_workers, run.name) == (2, "resizing")


def test_given_all_nodes_taken_back_when_one_is_there_again_then_it_goes_on_there() -> None:
    run = Run((1, 4), nodes=("node-a",), joined=False).join(POOL, "node-a")
    run.says(run.room(node_a=2)).running()
    run.says(run.noticed("node-a", within_s=0.0), run.room(), run.runner_lost("node-a")).waits(5.0)
    run.says(run.released()).waits(60.0)
    assert run.name == "restarting"
    run.says(run.room(node_a=1))
    assert (run.name, run.group.num_workers) == ("scheduling", 1)
    assert assignment(run.state, run.head).excluded_nodes == ()


def test_given_runners_that_were_told_to_leave_when_the_size_is_that_of_before_again_then_they_are_not_kept() -> None:
    run = elastic(2, 4, fits=4).running()
    changed_again(run, 3)
    run.says(run.failed(0))
    assert (run.path, run.name) == (["running>restarting"], "restarting")
    assert "starting again on new places" in run.the(FailureDecided).reason
    assert assignment(run.state, run.head).want == "stop"
    changed_again(run, 4)
    assert run.name == "restarting", "until they have left"
    run.says(run.released())
    assert run.the(AttemptStarted).num_workers == 4
    assert not assignment(run.state, run.head).kept
