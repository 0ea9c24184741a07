"""A group loses some of its places: the next attempt keeps the others with their runners, and looks for more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from runfold.controller.status import status
from runfold.events.base import Cause, Moment
from runfold.events.conclusions import ControllerStarted
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.edges import IllegalEdge
from runfold.events.evolve import evolve
from runfold.events.facts import PlaceOffer
from runfold.events.requests import AbortRun
from runfold.events.state import Rescheduling, Restarting, Scheduling
from runfold.events.timing import AS_THEY_STAND
from runfold.events.transitions import AttemptStarted, FailureDecided, GroupLaidOut, StateChanged
from support.places import START_S, THREE, at_work, left, looking, mended, waiting, wanted
from support.runs import AT, DECIDER, Run

if TYPE_CHECKING:
    pass

KEEPS = ["running>restarting", "restarting>scheduling"]


def test_given_a_lost_runner_then_one_entry_keeps_the_others_and_looks_for_another_place() -> None:
    run = looking()
    decided, begun = run.the(FailureDecided), run.the(AttemptStarted)
    assert run.path == KEEPS
    assert (decided.decision, decided.budget, decided.failure.node) == ("retry", "worker", "node-b")
    assert decided.reason == (
        "node-b failed first: RunnerLost: the runner ended by SIGKILL; worker failure 1 of 3; "
        "restarting on the same places; node-b lost its place, and another is looked for"
    )
    assert (begun.attempt, begun.kept, begun.vacated) == (2, True, (1,))
    assert begun.reason.endswith("on the places of the attempt before, with another place instead of that on node-b")
    told = wanted(run)
    assert (told.want, told.kept, told.layout) == ("place", True, ())
    assert [place.left for place in told.places] == [None, run.head.n, None]
    assert run.wake_at is None, "it waits for nodes to come back, as any run does that was placed once"
    assert waiting(run) == "another place instead of that on node-b in pool local"
    assert run.says(run.queued(needed=1)).name == "scheduling"
    assert waiting(run) == "another place instead of that on node-b: 1 slot needed, 0 free"


def test_given_another_place_when_its_runner_is_ready_then_ranks_are_laid_out_and_keep_their_nodes() -> None:
    run = looking()
    run.join("node-d").says(run.ready("node-d"))
    assert run.name == "scheduling"
    run.says(run.place_again(1, "node-d", 1))
    laid = run.the(GroupLaidOut)
    assert [rank.node for rank in run.group.ranks] == ["node-a", "node-d", "node-c"]
    assert (laid.addr, laid.port) == ("127.0.0.1", 4712), "the port that the runner of rank 0 has held for it"
    assert run.starts().name == "running"
    assert run.state.homes == ("node-a", "node-d", "node-c")


def test_given_the_place_of_rank_0_when_it_is_lost_then_they_meet_at_the_new_one() -> None:
    run = at_work().says()
    run.says(run.runner_lost("node-a")).join("node-d").says(run.place_again(0, "node-d", 1))
    run.says(run.ready("node-d", port=5000))
    assert (run.the(GroupLaidOut).port, run.group.ranks[0].node) == (5000, "node-d")


def test_given_a_place_on_the_same_node_then_what_its_runner_before_had_said_counts_no_more() -> None:
    run = looking()
    run.says(run.place_again(1, "node-b", 1))
    assert run.none(GroupLaidOut), "the runner of before was ready; this one is not yet"
    run.join("node-b", boot="b2").says(run.ready("node-b"))
    assert run.the(GroupLaidOut).attempt == 2


def test_given_the_runner_on_the_new_place_when_it_is_not_ready_in_time_then_that_place_alone_is_given_up() -> None:
    run = looking()
    run.says(run.place_again(1, "node-d", 1))
    assert isinstance(run.state.phase, Scheduling)
    assert run.state.phase.deadline_t == run.t + START_S
    run.waits(START_S)
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.budget, decided.failure.node) == ("start_timeout", "startup", "node-d")
    assert "restarting on the same places in 1 s at the earliest; node-d lost its place" in decided.reason
    assert isinstance(run.state.phase, Rescheduling)
    assert (run.state.phase.kept, wanted(run).want) == (True, "place"), "runners wait for the back-off to be over"
    run.waits(1.0)
    assert (run.the(AttemptStarted).vacated, left(run)) == ((1,), ["node-d"])


def test_given_a_first_attempt_when_one_runner_is_not_ready_in_time_then_the_others_are_kept() -> None:
    run = Run(3, nodes=THREE).places()
    run.says(run.ready("node-a"), run.ready("node-c")).waits(START_S)
    assert run.path == ["scheduling>rescheduling"]
    run.waits(1.0)
    assert run.the(AttemptStarted).vacated == (1,)
    mended(run, 1, "node-d").starts()
    assert (run.name, run.state.attempt) == ("running", 2)


def test_given_a_runner_that_is_starting_when_another_is_lost_then_it_is_waited_for_and_not_begun_again() -> None:
    run = Run(3, nodes=THREE).places()
    run.says(run.ready("node-a"), run.runner_lost("node-b")).waits(1.0)
    assert (run.the(AttemptStarted).vacated, left(run)) == ((1,), ["node-b"])
    run.says(run.ready("node-c", attempt=1))
    assert run.group.places[2].healthy
    assert mended(run, 1, "node-d").the(GroupLaidOut).attempt == 2


@pytest.mark.parametrize("lost", [("node-b",), ("node-b", "node-c")])
@pytest.mark.parametrize("first", ["place", "runner"])
def test_given_a_place_and_the_word_of_its_runner_in_either_order_then_nothing_else_of_it_is_remembered(
    lost: tuple[str, ...], first: str
) -> None:
    run = at_work()
    run.says(*(run.runner_lost(node) for node in lost))
    run.join("node-d")
    said = [run.place_again(1, "node-d", 1), run.ready("node-d")]
    run.says(*(said if first == "place" else reversed(said)))
    assert run.group.places[1].healthy
    assert run.group.early == {}


def test_given_another_placement_of_the_same_attempt_then_who_was_ready_before_it_was_told_is_ready() -> None:
    run = Run(1, nodes=("node-a", "node-b"))
    run.says(replace(run.placed(), places=(PlaceOffer(node="node-a", slots=1),)))
    run.says(run.ready("node-b"))
    assert list(run.group.early) == ["node-b"]
    run.says(replace(run.placed(), places=(PlaceOffer(node="node-b", slots=1),)))
    assert (run.the(GroupLaidOut).attempt, run.group.early) == (1, {})


def test_given_a_second_loss_while_a_place_is_looked_for_then_both_are_and_the_search_goes_on() -> None:
    run = looking()
    first = run.group.places[1].left
    run.says(run.runner_lost("node-c"))
    assert (run.the(FailureDecided).budget, run.path) == ("startup", ["scheduling>rescheduling"])
    run.waits(1.0)
    begun = run.the(AttemptStarted)
    assert (begun.attempt, begun.vacated, left(run)) == (3, (2,), ["node-b", "node-c"])
    assert run.group.places[1].left == first, "what was asked for stays asked for"
    run.says(run.place_again(1, "node-d", 1, attempt=2)).join("node-d").says(run.ready("node-d", attempt=2))
    assert left(run) == ["node-c"], "a place that was found in the attempt before counts"
    mended(run, 2, "node-e").starts()
    assert [rank.node for rank in run.group.ranks] == ["node-a", "node-d", "node-e"]


def test_given_a_place_that_was_found_for_another_loss_then_it_is_not_taken() -> None:
    run = looking()
    run.says(run.runner_lost("node-c")).waits(1.0)
    run.says(replace(run.place_again(1, "node-d", 1, attempt=2), left=2))
    assert left(run) == ["node-b", "node-c"]


def test_given_the_last_sound_place_when_it_is_lost_too_then_all_are_asked_for_anew() -> None:
    run = looking()
    run.says(run.runner_lost("node-a"), run.runner_lost("node-c"))
    assert "starting again on new places in 1 s" in run.the(FailureDecided).reason
    assert wanted(run).want == "stop"
    run.says(run.released()).waits(1.0)
    assert (run.the(AttemptStarted).kept, run.group.places) == (False, ())


def test_given_all_places_lost_during_the_back_off_then_they_are_given_back_after_it() -> None:
    run = Run(3, nodes=THREE).places()
    run.says(run.ready("node-a"), run.ready("node-c"), run.runner_lost("node-b"))
    run.says(run.runner_lost("node-a"), run.runner_lost("node-c"))
    assert wanted(run).want == "place"
    run.waits(1.0)
    assert run.path == ["rescheduling>rescheduling"]
    assert run.the(StateChanged).reason == (
        "no place is sound any more: the places that were kept are given back, and all are asked for anew"
    )
    assert wanted(run).want == "stop"
    assert not run.says(run.released()).the(AttemptStarted).kept


# --- who else needs the places


def test_given_others_that_wait_then_places_are_kept_no_longer_than_a_start_may_take() -> None:
    run = looking()
    run.says(run.queued(ahead=1, needed=1, contested=True))
    assert "start_timeout_s" in status(run.state, run.head, AT).timeouts
    run.waits(START_S - 1.0)
    run.says(run.queued(ahead=2, needed=1, contested=True))
    assert run.name == "scheduling"
    run.waits(1.0)
    assert (run.path, run.none(FailureDecided)) == (["scheduling>rescheduling"], True)
    assert run.the(StateChanged).reason == (
        "no other place for node-b within timeouts.start_timeout_s (60 s), while others wait, or all have room "
        "elsewhere: the places that were kept are given back, and all are asked for anew"
    )
    assert (wanted(run).want, run.state.budgets["startup"].spent) == ("stop", 0)
    run.says(run.released())
    assert (run.the(AttemptStarted).kept, run.state.attempt) == (False, 3)


def test_given_no_node_that_could_have_the_place_and_room_for_all_then_the_group_moves_at_once() -> None:
    run = looking()
    run.says(replace(run.queued(needed=1, contested=True), hopeless=True)).waits(0.1)
    assert run.the(StateChanged).reason.startswith(
        "no node of the pool could have another place for node-b, and there is room for all elsewhere: the places"
    )
    assert not run.says(run.released()).the(AttemptStarted).kept


def test_given_others_that_wait_no_more_then_places_are_kept_on() -> None:
    run = looking()
    run.says(run.queued(needed=1, contested=True)).says(run.queued(needed=1))
    run.waits(10 * START_S)
    assert (run.name, run.state.attempt) == ("scheduling", 2)


def test_given_a_place_found_in_time_then_its_runner_has_its_own_time_to_start() -> None:
    run = looking()
    run.says(run.queued(needed=1, contested=True)).waits(START_S - 1.0)
    run.says(run.place_again(1, "node-d", 1)).waits(2.0)
    assert run.name == "scheduling"


def test_given_a_place_that_is_found_as_the_time_for_it_is_over_then_it_is_taken() -> None:
    run = looking()
    run.says(replace(run.queued(needed=1, contested=True), hopeless=True), after_s=0.0)
    assert run.wake_at is not None
    run.says(run.place_again(1, "node-d", 1))
    assert (run.path, run.none(FailureDecided), left(run)) == ([], True, [])
    run.join("node-d").says(run.ready("node-d"))
    assert run.the(GroupLaidOut).attempt == run.state.attempt == 2


# --- what is given up, and what is not


def test_given_an_abort_while_a_place_is_looked_for_then_the_group_is_released() -> None:
    run = looking()
    run.says(AbortRun(id="r1", by="ops", reason="enough"))
    assert wanted(run).want == "stop"
    assert run.says(run.released()).name == "aborted"


def test_given_a_take_over_while_a_place_is_looked_for_then_the_search_goes_on() -> None:
    run = looking()
    run.says(ControllerStarted(controller="ctl-b", decider=DECIDER))
    assert (wanted(run).want, left(run)) == ("place", ["node-b"])
    assert mended(run, 1, "node-d").the(GroupLaidOut).attempt == 2


def test_given_a_supervisor_that_comes_anew_then_runners_it_does_not_find_are_lost_as_ever() -> None:
    run = looking()
    run.join("pool-local", boot="b2").says(run.runner_lost("node-b")).says(run.runner_lost("node-c"))
    assert run.the(FailureDecided).failure.node == "node-c"
    assert [failure.node for failure in run.state.others] == [], "of the place that was left nothing is lost any more"


def test_given_a_rank_that_raises_when_the_back_off_is_long_then_places_are_given_back_meanwhile() -> None:
    run = Run(3, nodes=THREE, failure=FailureConfig(max_failures=1, backoff_s=90.0, backoff_max_s=90.0)).running()
    run.says(run.runner_lost("node-b"))
    assert isinstance(run.state.phase, Restarting)
    assert (run.state.phase.kept, wanted(run).want) == (None, "stop")


def test_given_a_notice_that_is_taken_back_during_the_wait_then_every_place_is_kept() -> None:
    timeouts = Timeouts(coalesce_s=5.0)
    run = Run(3, nodes=THREE, timeouts=timeouts).running()
    run.says(run.noticed("node-b", within_s=1.0)).waits(1.0)
    assert isinstance(run.state.phase, Restarting)
    assert (run.state.phase.kept, run.state.phase.failure.kind) == (True, "preempted")
    run.says(run.cancelled("node-b")).waits(5.0)
    assert (run.the(AttemptStarted).kept, run.the(AttemptStarted).vacated) == (True, ())
    assert run.the(GroupLaidOut).attempt == 2


def test_given_replica_groups_that_all_fail_then_they_are_placed_anew_as_ever() -> None:
    run = Run(2, nodes=("node-a", "node-b"), failure=FailureConfig(max_failures=1), replica_size=2).running()
    run.says(run.runner_lost("node-b"))
    assert "starting again on new places" in run.the(FailureDecided).reason


def test_given_a_decider_that_gave_all_places_back_then_its_log_is_decided_as_it_was() -> None:
    run = at_work()
    older = replace(DECIDER, policies=("scaling:by-job", "failure:budgets"))
    run.says(ControllerStarted(controller="ctl", decider=older)).says(run.runner_lost("node-b"))
    assert "starting again on new places" in run.the(FailureDecided).reason
    assert (run.path, wanted(run).want) == (["running>restarting"], "stop")


def test_given_a_decider_that_let_a_timer_fire_that_was_put_off_then_its_log_is_decided_as_it_was() -> None:
    run = at_work()
    older = replace(DECIDER, policies=tuple(one for one in DECIDER.policies if one != AS_THEY_STAND))
    run = looking(run.says(ControllerStarted(controller="ctl", decider=older)))
    run.says(replace(run.queued(needed=1, contested=True), hopeless=True), after_s=0.0)
    run.says(run.place_again(1, "node-d", 1))
    assert run.the(FailureDecided).failure.kind == "start_timeout"


# --- elastic runs


def test_given_an_elastic_run_when_the_pool_has_room_for_its_size_then_its_places_are_kept() -> None:
    run = Run((1, 3), nodes=THREE, failure=FailureConfig(max_failures=3))
    run.says(run.room(node_a=1, node_b=1, node_c=1)).running()
    run.says(run.runner_lost("node-b"))
    assert (run.the(AttemptStarted).vacated, run.group.num_workers) == ((1,), 3)
    run.says(run.room(node_a=1, node_c=1))
    assert run.path == ["scheduling>resizing"], "it goes on smaller, on new places, when the node is not there any more"
    assert wanted(run).want == "stop"
    assert run.says(run.released()).group.num_workers == 2


def test_given_an_elastic_run_when_it_changes_its_size_then_it_is_placed_anew() -> None:
    run = Run((1, 3), nodes=THREE, failure=FailureConfig(max_failures=3))
    run.says(run.room(node_a=1, node_b=1, node_c=1)).running()
    run.says(run.room(node_a=1, node_c=1), run.runner_lost("node-b"))
    assert run.path == ["running>restarting"]
    assert wanted(run).want == "stop"


# --- the fold refuses what cannot be


@pytest.mark.parametrize("vacated", [(), (0, 1, 2), (3,), (0,)])
def test_an_attempt_keeps_no_place_that_is_lost_and_at_least_one(vacated: tuple[int, ...]) -> None:
    run = Run(3, nodes=THREE, failure=FailureConfig(max_failures=1, backoff_s=5.0)).running()
    run.says(run.runner_lost("node-b"))
    begun = AttemptStarted(
        attempt=2, num_workers=3, kept=True, vacated=vacated, cause=Cause(entry=1, input=0), reason="r"
    )
    with pytest.raises(IllegalEdge, match="cannot keep places"):
        evolve(run.state, begun, Moment(n=99, t=run.t))
