"""Nodes that are taken back: what is saved first, when the group goes on elsewhere, and where it may not go."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pytest
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.events.assignment import Assignment, NodesTaken, Work
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.limits import ASSIGNMENT_MAX_BYTES, AWAY_MAX_COUNT, PREEMPTION_WITHIN_MAX_S, PREEMPTION_WITHIN_S
from runfold.events.notices import taken_back, without
from runfold.events.requests import AdmitNode, CancelPreemption, NoticePreemption
from runfold.events.state import Preempting, Restarting
from runfold.events.transitions import (
    AttemptStarted,
    CheckpointCommitted,
    FailureDecided,
    NodeAdmitted,
    RequestAccepted,
    RequestRefused,
)
from support.runs import AT, POOL, Run

NODES = ("node-a", "node-b")
AT_ONCE = Timeouts(coalesce_s=0.0)


def at_work(workers: int = 2, **failure: int) -> Run:
    config = FailureConfig(max_failures=failure.get("max_failures", 1))
    return Run(workers, nodes=NODES, timeouts=AT_ONCE, failure=config).running()


def preempting(*, room: dict[str, int] | None = None) -> Run:
    """Two ranks on two nodes, one report behind them, and notice that node-b goes."""
    run = at_work()
    run.says(run.reported(0, 0), run.reported(1, 0))
    run.says(run.noticed("node-b", within_s=60.0, reason="spot reclaim"))
    return run if room is None else run.says(run.room(**room))


def saves(run: Run, index: int) -> Run:
    """Let every rank report a checkpoint, and it be sealed."""
    run.says(run.shard(0, index), run.shard(1, index))
    name = f"checkpoint_{run.state.checkpoints.base + index:06d}_{run.state.attempt}"
    run.says(run.sealed(name, node="node-a"))
    run.the(CheckpointCommitted)
    return run


def wanted(run: Run) -> Assignment:
    return assignment(run.state, run.head)


def work(run: Run) -> Work:
    told = wanted(run).job
    assert told is not None
    return told


# --- saved, then elsewhere


def test_given_room_elsewhere_when_what_was_asked_for_is_committed_then_the_group_goes_on_there_at_once() -> None:
    run = saves(preempting(room={"node_a": 2, "node_b": 1, "node_c": 1}), 1)
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.budget, decided.spent) == ("preempted", "preemption", 1)
    assert decided.failure.error.message == (
        "node-b will be taken back, checkpoint_000001_1 is committed, and the pool has room for the ranks elsewhere"
    )
    assert run.path == ["preempting>restarting", "restarting>scheduling"]
    assert run.the(AttemptStarted).vacated == (1,)
    assert wanted(run).excluded_nodes == ("node-b",)
    assert (run.state.notice, run.state.away) == (None, ("node-b",))
    run.join("node-c").says(run.place_again(1, "node-c", 1)).says(run.ready("node-c")).starts()
    assert (run.name, work(run).checkpoint) == ("running", "checkpoint_000001_1")


def test_given_no_room_elsewhere_when_what_was_asked_for_is_committed_then_nothing_is_asked_for_any_more() -> None:
    run = preempting()
    assert work(run).wanted is not None
    told = work(saves(run, 1))
    assert (run.name, told.wanted) == ("preempting", None)
    assert told.taken is not None


def test_given_a_checkpoint_of_before_the_notice_when_it_is_committed_then_the_one_asked_for_is_waited_for() -> None:
    run = at_work()
    run.says(run.shard(0, 0), run.shard(1, 0))
    run.says(run.noticed("node-b", within_s=60.0)).says(run.room(node_a=2))
    run.says(run.sealed("checkpoint_000000_1", node="node-a"))
    assert run.name == "preempting"
    assert saves(run, 1).path == ["preempting>restarting", "restarting>scheduling"]


def test_given_no_room_elsewhere_then_the_ranks_work_on_until_there_is() -> None:
    run = saves(preempting(room={"node_a": 1}), 1)
    assert run.name == "preempting"
    run.says(run.room(node_a=1, node_c=1))
    assert run.path == ["preempting>restarting", "restarting>scheduling"]


def test_given_a_pool_that_has_not_said_what_it_has_then_the_ranks_work_on_until_the_deadline() -> None:
    run = saves(preempting(), 1)
    assert run.name == "preempting"
    assert wanted(run).room_for == 2, "the pool is asked"
    assert run.waits(60.0).path == ["preempting>restarting", "restarting>scheduling"]


def test_given_notices_that_come_together_then_the_new_group_waits_until_they_have() -> None:
    run = Run(2, nodes=NODES, timeouts=Timeouts(coalesce_s=5.0)).running()
    run.says(run.noticed("node-b")).says(run.room(node_a=2))
    saves(run, 0)
    assert isinstance(run.state.phase, Restarting)
    assert run.state.phase.not_before_t == pytest.approx(run.t + 4.7)


def test_given_more_nodes_when_they_are_named_then_it_is_known_since_when_and_what_counts_as_saved() -> None:
    run = preempting()
    before = run.state.phase
    run.says(run.reported(0, 1), run.reported(1, 1)).says(run.noticed("node-a", within_s=60.0))
    after = run.state.phase
    assert isinstance(before, Preempting)
    assert isinstance(after, Preempting)
    assert (after.since_t, after.after, after.nodes) == (before.since_t, 0, NODES)


# --- a failure meanwhile


def test_given_a_rank_that_raises_and_room_elsewhere_then_the_group_does_not_keep_a_place_that_goes() -> None:
    run = preempting(room={"node_a": 2})
    run.says(run.failed(1))
    lost = "restarting on the same places; node-b lost its place, and another is looked for"
    assert run.the(FailureDecided).reason.endswith(lost)
    assert run.the(AttemptStarted).vacated == (1,)
    assert wanted(run).excluded_nodes == ("node-b",)


def test_given_a_rank_that_raises_and_no_other_room_then_the_group_uses_its_places_while_it_has_them() -> None:
    run = preempting(room={"node_a": 1})
    run.says(run.failed(1))
    assert run.the(AttemptStarted).kept


# --- done there


@pytest.mark.parametrize("before", [True, False])
def test_given_nodes_on_which_every_rank_has_returned_then_their_notice_costs_nothing(before: bool) -> None:
    run = at_work()
    run.says(run.returned(1) if before else run.noticed("node-b", within_s=4.0))
    run.says(run.noticed("node-b", within_s=4.0) if before else run.returned(1))
    assert (run.name, work(run).taken, work(run).wanted) == ("running", None, None)
    run.waits(4.0).says(run.runner_lost("node-b"))
    assert (run.said, run.state.attempt) == ((), 1)
    run.says(run.returned(0))
    assert run.path == ["running>shutting_down"]
    assert run.state.budgets["preemption"].spent == 0


def test_given_several_nodes_that_go_when_the_ranks_of_one_return_then_the_same_wish_stands_for_the_others() -> None:
    run = at_work(4)
    run.says(run.noticed(*NODES, within_s=4.0))
    first = work(run).wanted
    run.says(run.returned(0), run.returned(1))
    assert (run.said, work(run).wanted) == ((), first)
    run.waits(4.0)
    assert run.the(FailureDecided).failure.error.message == "node-b taken back before the ranks were done"


# --- nowhere to go


def everything_goes() -> Run:
    run = at_work().says()
    run.says(run.noticed(*NODES, within_s=30.0)).waits(30.0)
    return run.says(run.released())


def test_given_notice_for_every_node_when_no_place_can_be_had_then_the_run_waits() -> None:
    run = everything_goes()
    assert wanted(run).excluded_nodes == NODES
    run.says(run.placement_failed(never=True, reason="no usable node"))
    assert run.name == "scheduling"
    waiting = status(run.state, run.head, AT).waiting
    assert waiting == (
        "no usable node; it stays off node-a, node-b, taken back: "
        "`runfold preempt digits --node node-a --cancel` undoes it"
    )
    run.says(AdmitNode(id="r1", node="node-a", by="ann"))
    assert run.the(NodeAdmitted).reason == "node-a may be used again, as ann asked"
    assert wanted(run).excluded_nodes == ("node-b",)


def test_given_nodes_that_were_taken_back_when_they_stay_after_all_then_they_are_used_again() -> None:
    run = everything_goes()
    run.says(CancelPreemption(id="r1", nodes=("node-b",)))
    assert run.the(RequestAccepted).reason == "node-b stays after all"
    assert wanted(run).excluded_nodes == ("node-a",)
    run.says(run.cancelled("node-a"))
    assert wanted(run).excluded_nodes == ()
    run.says(CancelPreemption(id="r2", nodes=("node-b",)))
    assert "no notice is in force for node-b" in run.the(RequestRefused).reason


def test_given_a_node_that_was_taken_back_when_the_pool_has_it_again_then_it_is_used_again() -> None:
    run = everything_goes()
    run.says(run.room(node_a=1, node_b=1))
    assert wanted(run).excluded_nodes == NODES, "it is still there, and still about to go"
    run.says(run.room(node_a=1))
    run.says(run.room(node_a=1, node_b=1))
    assert wanted(run).excluded_nodes == ("node-a",)


def test_given_a_run_that_waits_and_stays_off_nodes_then_it_asks_its_pool_whether_they_have_gone_and_come() -> None:
    run = everything_goes()
    assert (run.state.notice, wanted(run).room_for) == (None, 2)
    run.says(run.room(node_a=1)).says(run.room(node_a=1, node_b=1)).says(CancelPreemption(id="r1", nodes=("node-a",)))
    assert (wanted(run).excluded_nodes, wanted(run).room_for) == ((), 0)


def test_given_a_supervisor_that_begins_anew_then_it_says_itself_what_there_is() -> None:
    run = everything_goes().join(POOL, boot="b2")
    assert wanted(run).excluded_nodes == ()


def test_given_a_placement_that_cannot_be_for_another_reason_then_the_run_ends() -> None:
    run = Run(2, nodes=NODES)
    run.says(run.placement_failed(never=True, reason="no GPU"))
    assert run.name == "shutting_down"


def test_nodes_that_were_taken_back_are_remembered_up_to_a_limit() -> None:
    nodes = tuple(f"n{i}" for i in range(AWAY_MAX_COUNT + 1))
    assert taken_back(nodes[:-1], nodes[-1:]) == nodes[1:]
    assert taken_back(("a", "b"), ("a",)) == ("b", "a")
    assert without(("a", "b"), ("a", "c")) == ("b",)


# --- what the ranks are told


def test_given_a_notice_then_the_ranks_are_told_who_goes_and_when() -> None:
    run = at_work()
    run.says(run.noticed("node-b", within_s=60.0))
    state = replace(run.state, accepted_at="2026-11-30T05:48:28.000000Z")
    told = assignment(state, run.head).job
    assert told is not None
    began_ms = round(datetime.fromisoformat("2026-11-30T05:48:28+00:00").timestamp() * 1000)
    assert told.taken == NodesTaken(nodes={"node-b": (1,)}, deadline_ms=began_ms + round((run.t + 60.0) * 1000))
    assert status(run.state, run.head, AT).excluded_nodes == {"node-b": "will be taken back"}
    run.says(run.cancelled("node-b"))
    assert work(run).taken is None


def test_given_a_run_of_which_it_is_not_known_when_it_began_then_the_ranks_are_told_no_time() -> None:
    run = at_work()
    run.says(run.noticed("node-b", within_s=60.0))
    assert run.state.accepted_at == AT
    told = assignment(replace(run.state, accepted_at=""), run.head).job
    assert told is not None
    assert told.taken == NodesTaken(nodes={"node-b": (1,)})


@pytest.mark.parametrize("node", ["", "n" * 129, "node-b\x1b[2J", "a\nb"])
def test_given_a_notice_for_what_no_node_is_called_then_it_is_refused(node: str) -> None:
    run = at_work()
    run.says(NoticePreemption(id="q", nodes=("node-b", node)))
    assert "is no node's name" in run.the(RequestRefused).reason
    assert run.state.notice is None


def test_given_notices_for_nodes_without_end_then_so_many_are_remembered_and_they_fit_an_assignment() -> None:
    run = at_work()
    for i in range(12):
        strangers = tuple(f"{i:03}-{j:03}-{'n' * 120}" for j in range(100))
        run.says(NoticePreemption(id=f"q{i}", nodes=("node-b", *strangers)))
    assert run.state.notice is not None
    assert len(run.state.notice.nodes) == AWAY_MAX_COUNT
    assert "node-b" in run.state.notice.nodes
    assert len(msgspec.json.encode(wanted(run))) < ASSIGNMENT_MAX_BYTES


@pytest.mark.parametrize(
    ("within_s", "taken_s"), [(1e308, PREEMPTION_WITHIN_MAX_S), (1e19, PREEMPTION_WITHIN_MAX_S), (-1e308, 0.0)]
)
@pytest.mark.parametrize("asked", [True, False])
def test_given_a_notice_for_a_time_that_is_none_then_it_is_taken_for_the_nearest_that_is(
    asked: bool, within_s: float, taken_s: float
) -> None:
    run = at_work()
    notice = NoticePreemption(id="q", nodes=("node-b",), within_s=within_s)
    run.says(notice if asked else run.noticed("node-b", within_s=within_s))
    told = work(run).taken
    assert told is not None
    began_s = datetime.fromisoformat(run.state.accepted_at).timestamp()
    assert told.deadline_ms == round((began_s + run.t + taken_s) * 1000)


def test_given_a_notice_that_does_not_say_when_then_the_ranks_are_told_the_deadline_that_is_acted_on() -> None:
    run = at_work()
    run.says(NoticePreemption(id="r1", nodes=("node-b",)))
    began_s = datetime.fromisoformat(run.state.accepted_at).timestamp()
    due_ms = round((began_s + run.t + PREEMPTION_WITHIN_S) * 1000)
    assert work(run).taken == NodesTaken(nodes={"node-b": (1,)}, deadline_ms=due_ms)


def test_given_a_second_notice_after_one_that_was_withdrawn_then_it_is_another_wish_for_a_checkpoint() -> None:
    run = preempting()
    first = work(run).wanted
    run.says(run.cancelled("node-b"))
    assert work(run).wanted is None
    run.says(run.noticed("node-b"))
    assert work(run).wanted not in (None, first)


def test_a_node_that_nobody_stays_off_cannot_be_admitted() -> None:
    run = at_work()
    run.says(AdmitNode(id="r1", node="node-b"))
    assert "node-b is not excluded" in run.the(RequestRefused).reason
