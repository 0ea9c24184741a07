"""Nodes that will be taken back before anybody works on them: their places are left, and nothing is spent."""

from __future__ import annotations

from runfold.events.config import FailureConfig
from runfold.events.transitions import AttemptStarted, FailureDecided, GroupLaidOut, StateChanged
from support.places import START_S, THREE, at_work, left, looking, mended, waiting, wanted
from support.runs import Run


def test_given_notice_for_a_kept_place_while_another_is_looked_for_then_both_are_and_nothing_is_spent() -> None:
    run = looking()
    run.says(run.queued(needed=1)).says(run.noticed("node-a", within_s=1.0, reason="spot reclaim"))
    changed, begun = next(said for said in run.said if isinstance(said, StateChanged)), run.the(AttemptStarted)
    assert changed.reason == (
        "node-a will be taken back: spot reclaim, and no rank is at work there: nothing is spent; "
        "restarting on the same places; node-a, node-b lost their places, and others are looked for"
    )
    assert (run.path, run.none(FailureDecided)) == (["scheduling>rescheduling", "rescheduling>scheduling"], True)
    assert (begun.attempt, begun.vacated, left(run)) == (3, (0,), ["node-a", "node-b"])
    assert run.state.budgets["preemption"].spent == 0
    assert waiting(run).startswith("another place instead of that on node-a, node-b in pool local; it stays off node-a")
    assert (wanted(run).want, wanted(run).excluded_nodes) == ("place", ("node-a",))
    run.says(run.place_again(1, "node-d", 1, attempt=2)).join("node-d").says(run.ready("node-d")).waits(5.0)
    assert run.none(GroupLaidOut), "what was found first waits for the other"
    mended(run, 0, "node-e").starts()
    assert ([rank.node for rank in run.group.ranks], run.name) == (["node-e", "node-d", "node-c"], "running")
    assert run.waits(60.0).said == (), "nobody is on the node that was taken back"


def test_given_a_notice_that_is_taken_back_then_the_place_that_was_given_up_may_be_had_again() -> None:
    run = looking()
    run.says(run.noticed("node-a")).says(run.cancelled("node-a"))
    assert (left(run), wanted(run).excluded_nodes) == (["node-a", "node-b"], ())
    run.says(run.place_again(0, "node-a", 1)).join("node-a", boot="b2").says(run.ready("node-a"))
    assert mended(run, 1, "node-b").the(GroupLaidOut).attempt == 3


def test_given_notice_for_all_places_that_are_kept_then_they_are_given_back_and_all_are_asked_for_elsewhere() -> None:
    run = looking()
    run.says(run.noticed("node-a", "node-c", within_s=1.0))
    assert (run.path, wanted(run).want) == (["scheduling>rescheduling"], "stop")
    assert run.the(StateChanged).reason.endswith("nothing is spent; all places are given back, and asked for anew")
    run.says(run.released()).waits(5.0)
    assert (run.the(AttemptStarted).kept, wanted(run).excluded_nodes) == (False, ("node-a", "node-c"))


def test_given_a_notice_and_a_lost_place_then_the_next_attempt_gives_up_both_at_once() -> None:
    run = at_work()
    run.says(run.noticed("node-a", within_s=60.0)).says(run.runner_lost("node-b"))
    assert (run.path, run.the(AttemptStarted).vacated) == (["preempting>restarting", "restarting>scheduling"], (0, 1))
    assert run.the(FailureDecided).budget == "worker"


def test_given_notice_for_a_node_that_was_left_then_nothing_more_is_given_up() -> None:
    run = looking()
    run.says(run.noticed("node-b"))
    assert (run.said, left(run)) == ((), ["node-b"])


def test_given_a_first_attempt_and_room_elsewhere_then_a_place_that_will_go_is_left_before_anybody_starts() -> None:
    run = Run(3, nodes=THREE).places()
    run.says(run.noticed("node-b"))
    assert run.said == (), "the pool has not said that it has room elsewhere: such a place is used while it can be"
    run.says(run.room(node_a=1, node_c=1, node_d=1))
    assert (run.the(AttemptStarted).vacated, left(run)) == ((1,), ["node-b"])
    run.says(run.queued(needed=1, contested=True)).waits(START_S)
    assert run.the(StateChanged).reason.startswith("no other place for node-b within timeouts.start_timeout_s")
    assert run.none(FailureDecided)
    assert not run.says(run.released()).the(AttemptStarted).kept


def test_given_a_first_attempt_when_a_node_is_taken_back_before_its_runner_is_ready_then_nobody_starts_there() -> None:
    run = Run(3, nodes=THREE, failure=FailureConfig(max_preemption_failures=0)).places()
    run.says(run.noticed("node-b", within_s=1.0), run.ready("node-a"), run.ready("node-b"))
    run.says(run.ready("node-c"), after_s=1.5)
    assert (run.none(GroupLaidOut), run.the(AttemptStarted).vacated, left(run)) == (True, (1,), ["node-b"])
    assert wanted(run).excluded_nodes == ("node-b",)
    assert mended(run, 1, "node-d").starts().name == "running"


def test_given_a_first_attempt_and_no_other_room_when_there_is_time_left_then_the_ranks_work_until_it_is_over() -> None:
    run = Run(3, nodes=THREE).places()
    run.says(run.noticed("node-b", within_s=60.0))
    run.says(*(run.ready(node) for node in THREE)).starts()
    assert run.path == ["scheduling>running", "running>preempting"]
