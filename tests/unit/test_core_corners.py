"""Corners of the pure core that no ordinary run comes by."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.controller.budgets import backoff_s
from runfold.controller.decide import decide
from runfold.controller.decision import Unsettled
from runfold.controller.failing import open_failures, revise, timed_out
from runfold.controller.layout import lay_out, layout_words
from runfold.controller.status import cause_words, later, status, waiting_for
from runfold.controller.words import listed, ranks
from runfold.events.base import Cause, Moment
from runfold.events.config import FailureConfig
from runfold.events.evolve import evolve
from runfold.events.limits import STARTUP_BACKOFF_MAX_S
from runfold.events.log import Appended, Damaged, LogFull, LogUnavailable
from runfold.events.memory import Fault, MemoryLog, MemoryStore
from runfold.events.observe import observe_all
from runfold.events.requests import AbortRun, AdmitNode
from runfold.events.state import Place
from runfold.events.transitions import FailureDecided, RequestAccepted, SourceJoined
from runfold.events.values import Unencodable, pack
from support.log_rig import Chain
from support.runs import AT, Run

# --- a decision that never comes to rest


def test_given_rules_that_go_round_in_a_circle_then_deciding_gives_up_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(1).lays_out()
    monkeypatch.setattr("runfold.controller.decide.DECIDE_ROUNDS_MAX_COUNT", 1)
    with pytest.raises(Unsettled, match="digits: no rest after 1 rounds; last: 1 rank in user code"):
        decide(run.state, [run.started(0)], run.t)


# --- layout


def place(node: str, slots: int) -> Place:
    return Place(node=node, slots=slots, source=node)


def test_ranks_fill_node_after_node() -> None:
    laid = lay_out([place("a", 2), place("b", 2)], 3)
    assert [(who.place, who.local_rank, who.node_rank) for who in laid] == [(0, 0, 0), (0, 1, 0), (1, 0, 1)]


def test_ranks_keep_their_node_where_it_has_room_and_others_fill_up() -> None:
    laid = lay_out([place("a", 1), place("b", 2)], 3, ["b", "gone", "b", "b"])
    assert [who.place for who in laid] == [1, 0, 1]
    assert [(who.local_rank, who.node_rank) for who in laid] == [(0, 0), (0, 1), (1, 0)]
    crowded = lay_out([place("a", 2), place("b", 1)], 3, ["b", "b", "b"])
    assert [who.place for who in crowded] == [1, 0, 0]


def test_words_for_counts_and_names() -> None:
    assert layout_words(lay_out([place("a", 1), place("b", 2)], 3), [place("a", 1), place("b", 2)]) == (
        "1 rank on a, 2 on b"
    )
    assert (ranks(1), ranks(2)) == ("1 rank", "2 ranks")
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"


# --- status


def test_times_are_counted_from_the_acceptance() -> None:
    assert later(AT, 1.5) == "2026-11-30T05:48:29.500000Z"
    assert later("no time", 1.5) == "no time"
    assert later(AT, 1e300) == AT


def test_causes_are_pointed_at_as_people_do() -> None:
    assert cause_words(Cause(entry=17, input=0)) == "entry 17, input 0"
    assert cause_words(Cause(transition=3)) == "transition 3"


def test_the_error_is_shown_until_the_run_is_at_work_again() -> None:
    run = Run(1, failure=FailureConfig(max_failures=1)).running()
    assert status(run.state, run.head, AT).error is None
    run.says(run.failed(0))
    shown = status(run.state, run.head, AT)
    assert shown.state == "scheduling"
    assert shown.error is not None
    assert (shown.error.attempt, shown.error.node) == (1, "local")
    run.starts().finishing()
    assert status(run.state, run.head, AT).error is None


def test_a_state_without_a_group_waits_for_nothing_it_could_name() -> None:
    run = Run(1)
    bare = replace(run.state, group=None)
    assert waiting_for(bare) is None
    assert open_failures(bare) == ()
    assert timed_out(bare) is None
    assert revise(bare) == ()
    started = Run(1).lays_out()
    group = started.group
    done = replace(group, ranks=tuple(replace(rank, started=True) for rank in group.ranks))
    assert waiting_for(replace(started.state, group=done)) is None


# --- budgets


def test_a_back_off_stays_bounded_however_often_it_doubled() -> None:
    state = replace(Run(1, failure=FailureConfig(backoff_s=3.0)).state, startup_streak=10_000)
    assert backoff_s(state, "startup", 1) == STARTUP_BACKOFF_MAX_S
    assert backoff_s(state, "worker", 10_000) == 60.0
    assert backoff_s(state, None, 0) == 3.0


def test_a_decision_that_spends_nothing_leaves_the_budgets() -> None:
    run = Run(1).running()
    run.says(run.failed(0, kind="load"))
    assert run.the(FailureDecided).budget is None
    assert all(budget.spent == 0 for budget in run.state.budgets.values())


def test_a_request_is_granted_whatever_waits_beside_it() -> None:
    run = Run(1).running()
    waiting = observe_all(run.state, [AdmitNode(id="r1", node="x"), AbortRun(id="r2")], n=run.state.n + 1, t=run.t)
    accepted = RequestAccepted(id="r2", request="abort_run", cause=Cause(input=1), reason="asked for")
    after = evolve(waiting, accepted, Moment(n=waiting.n, t=run.t))
    assert after.ending is not None
    assert [other.request.id for other in after.pending] == ["r1"]


def test_a_scalar_that_is_its_own_item_is_no_number() -> None:
    class Stubborn:
        shape = ()

        def item(self) -> object:
            return self

    with pytest.raises(Unencodable, match="Stubborn"):
        pack(Stubborn())


def test_a_source_may_join_a_run_without_a_group() -> None:
    run = Run(1)
    joined = SourceJoined(source="local", boot="b9", incarnation=2, cause=Cause(input=0), reason="again")
    after = evolve(replace(run.state, group=None), joined, Moment(n=9, t=9.0))
    assert after.sources["local"].incarnation == 2


def test_a_rank_named_by_a_failure_that_is_not_of_the_group_has_no_step() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(1))
    revised = run.says(run.runner_lost(attempt=1)).state
    assert revised.late[0].failure.rank is None


# --- the log in memory


async def test_a_call_that_goes_wrong_goes_wrong_once_or_for_ever() -> None:
    data, prev = Chain().entries(1)[0]
    once = MemoryLog("r", faults=[Fault(at=1, kind="mute")])
    with pytest.raises(LogUnavailable):
        await once.last_sequence()
    assert await once.last_sequence() == 0
    assert once.calls_count == 2
    for_ever = MemoryLog("r", once.store, faults=[Fault(at=2, kind="deaf", sticky=True)])
    assert await for_ever.last_sequence() == 0
    for _ in range(2):
        with pytest.raises(LogUnavailable):
            await for_ever.append(data, n=0, digest="d", prev=prev, last_sequence=0)
    with pytest.raises(LogUnavailable):
        async for _ in for_ever.read():
            pass


async def test_a_full_store_answers_reads_and_takes_no_append() -> None:
    data, prev = Chain().entries(1)[0]
    log = MemoryLog("r", faults=[Fault(at=1, kind="full", sticky=True)])
    with pytest.raises(LogFull):
        await log.append(data, n=0, digest="d", prev=prev, last_sequence=0)
    assert [message async for message in log.read()] == []
    assert log.messages == []


async def test_a_store_keeps_its_own_time_and_can_be_hurt() -> None:
    store = MemoryStore()
    store.now_s = 7.0
    log = MemoryLog("r", store)
    data, prev = Chain().entries(1)[0]
    assert await log.append(data, n=0, digest="d", prev=prev, last_sequence=0) == Appended(sequence=1)
    store.put("other", b"x")
    store.rewrite(1, b"flipped")
    stored = [message async for message in log.read()]
    assert [(message.data, message.stored_at_s) for message in stored] == [(b"flipped", 7.0)]
    store.cut(keep=0)
    assert await log.append(data, n=1, digest="d", prev=prev, last_sequence=1) == Damaged(
        expected_sequence=1, found_sequence=0
    )
