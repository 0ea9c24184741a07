"""What an input changes before anything is decided: numbers, stale voices, what is kept of a fact."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.events.base import Moment
from runfold.events.conclusions import MessageMalformed, SilenceConcluded
from runfold.events.config import FailureConfig
from runfold.events.draft import Draft
from runfold.events.entry import AnyInput
from runfold.events.facts import AnyFact, CheckpointSealed, Queued, TaskEnded
from runfold.events.limits import SOURCES_MAX_COUNT
from runfold.events.notices import cancelled
from runfold.events.observe import observe, observe_all, verdict
from runfold.events.requests import AbortRun, Join
from runfold.events.state import Dropped, RunState, Source, Verdict
from runfold.events.transitions import RequestAccepted, SourceJoined
from support.runs import POOL, Run


def seen(state: RunState, *inputs: AnyInput) -> RunState:
    return observe_all(state, inputs, n=state.n + 1, t=state.t)


def judged(run: Run) -> dict[str, tuple[AnyFact, Verdict]]:
    """Facts of every kind of standing, for a run in its second attempt whose runner is in its second incarnation."""
    good = run.started(0)
    return {
        "the next": (good, "folded"),
        "a repeat": (replace(good, number=good.number - 1), "repeat"),
        "after a gap": (replace(good, number=good.number + 1), "gap"),
        "an older incarnation": (replace(good, incarnation=1), "stale"),
        "an incarnation never handed out": (replace(good, incarnation=9), "foreign"),
        "an unknown source": (replace(good, source="stranger"), "foreign"),
        "an ended attempt": (replace(good, attempt=1), "stale"),
        "an attempt to come": (replace(good, attempt=9), "foreign"),
        "an unknown rank": (replace(good, rank=2), "foreign"),
        "a rank below 0": (replace(good, rank=-1), "foreign"),
        "a life to come": (replace(good, life=2), "foreign"),
        "a life that is over": (replace(good, life=0), "stale"),
        "another runner's rank": (run.number(replace(good, source=POOL)), "foreign"),
        "the supervisor's to say": (
            Queued(source="local", incarnation=2, number=good.number, attempt=2, ahead=0, free=0, needed=1),
            "foreign",
        ),
    }


def second_attempt() -> Run:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.runner_lost()).says(run.released())
    return run.join("local", boot="b2").lays_out()


@pytest.mark.parametrize("case", list(judged(second_attempt())))
def test_a_fact_is_judged_by_its_number_and_by_what_it_speaks_of(case: str) -> None:
    run = second_attempt()
    fact, expected = judged(run)[case]
    assert verdict(run.state, fact) == expected
    before = run.state
    after = seen(before, fact)
    old, new = before.sources.get(fact.source), after.sources.get(fact.source)
    counted = old is not None and fact.incarnation == old.incarnation and fact.number == old.folded + 1
    assert new == (replace(old, folded=old.folded + 1) if counted and old is not None else new)
    expected_drops = Dropped(
        stale=before.dropped.stale + (expected == "stale"), foreign=before.dropped.foreign + (expected == "foreign")
    )
    assert after.dropped == expected_drops
    if expected != "folded":
        assert (after.phase, after.group, after.budgets) == (before.phase, before.group, before.budgets)


def test_a_gap_is_shown_until_what_is_missing_has_come() -> None:
    run = Run(1).running()
    first, second, third = (run.reported(0, index) for index in range(3))
    state = seen(run.state, third)
    assert (state.sources["local"].missing, state.reports) == (True, 0)
    state = seen(state, first, third)
    assert state.sources["local"].missing
    state = seen(state, second, third)
    assert (state.sources["local"].missing, state.reports) == (False, 3)


def test_reports_are_counted_and_the_newest_of_each_rank_is_kept() -> None:
    run = Run(2).running()
    run.says(run.reported(0, 0, loss=2.0), run.reported(1, 0), run.reported(0, 1, loss=1.0), run.reported(1, 1))
    state = run.state
    assert (state.reports, state.metrics, run.group.progress) == (4, {"loss": 1.0}, 2)
    assert [(rank.index, rank.step) for rank in run.group.ranks] == [(1, 10), (1, 10)]
    silent = replace(run.reported(0, 2), step=None, metrics=None)
    run.says(silent)
    assert (run.group.ranks[0].index, run.group.ranks[0].step) == (2, 10)
    assert run.state.metrics == {"loss": 1.0}


def test_reports_of_an_ended_attempt_are_dropped_and_counted() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.failed(0)).says(run.reported(1, 5, attempt=1))
    assert (run.state.reports, run.state.dropped.stale) == (0, 1)


def test_one_by_one_and_all_at_once_are_the_same() -> None:
    run = Run(2).running()
    inputs: list[AnyInput] = [run.reported(0, 0), run.reported(1, 0), run.returned(0), run.exited(0, 0)]
    one_by_one = run.state
    for k, item in enumerate(inputs):
        one_by_one = observe(one_by_one, item, Moment(n=run.state.n + 1, t=run.state.t, k=k))
    assert one_by_one == seen(run.state, *inputs)


def test_the_return_value_is_rank_0s_and_of_the_present_attempt() -> None:
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.returned(1, 8))
    assert run.state.return_value is None
    run.says(replace(run.returned(0, 9), value=None, blob="sha256:aa"))
    assert run.state.return_blob == "sha256:aa"
    run = Run(2, failure=FailureConfig(max_failures=1)).running()
    run.says(run.returned(0, 9))
    assert run.state.return_value == 9
    run.says(run.failed(1))
    assert run.state.return_value is None


def test_how_a_rank_ended_is_kept() -> None:
    run = Run(1).running()
    run.says(run.returned(0))
    run.says(replace(run.exited(0, 0), peak_memory_bytes=123))
    ended = run.group.ranks[0].exit
    assert ended is not None
    assert (ended.exit_code, ended.peak_memory_bytes) == (0, 123)
    assert run.group.ranks[0].phase == "returned"


def test_the_end_of_a_task_that_nobody_ordered_changes_nothing() -> None:
    run = Run(1).running()
    before = run.group
    sealed = CheckpointSealed(
        source="local", incarnation=1, number=0, attempt=1, name="c", index=0, manifest_digest="d", size_bytes=1
    )
    ended = TaskEnded(source="local", incarnation=1, number=0, attempt=1, task="t", outcome="done")
    run.says(run.number(sealed), run.number(ended))
    assert run.group == before
    assert run.said == ()


def test_what_a_runner_says_of_its_next_port_is_for_the_next_layout() -> None:
    run = Run(1).lays_out()
    run.says(run.started(0, next_port=5000))
    ready = run.group.places[0].ready
    assert ready is not None
    assert (ready.port, run.group.port) == (5000, 4711)
    run = Run(1).lays_out()
    run.says(replace(run.started(0), next_port=None))
    ready = run.group.places[0].ready
    assert ready is not None
    assert ready.port == 4711


def test_a_message_that_could_not_be_read_is_counted() -> None:
    run = Run(1).says(MessageMalformed(subject="s", reason="not JSON", digest="d"))
    assert run.state.dropped == Dropped(malformed=1)


def test_a_request_is_pending_until_it_is_answered_and_the_same_id_is_the_same_request() -> None:
    run = Run(1).running()
    state = seen(run.state, AbortRun(id="r1"), AbortRun(id="r1", by="again"))
    assert [waiting.request.id for waiting in state.pending] == ["r1"]
    run.says(AbortRun(id="r1"))
    assert run.the(RequestAccepted).id == "r1"
    assert run.state.pending == ()
    assert seen(run.state, AbortRun(id="r1")).pending == ()


def test_two_processes_that_ask_for_one_name_in_one_entry_get_one_incarnation_after_the_other() -> None:
    run = Run(1, joined=False)
    run.says(Join(id="a", source="n", boot="a"), Join(id="b", source="n", boot="b"))
    assert [(said.boot, said.incarnation) for said in run.said if isinstance(said, SourceJoined)] == [
        ("a", 1),
        ("b", 2),
    ]


def test_of_two_processes_that_ask_for_a_free_name_in_one_entry_one_gets_it() -> None:
    run = Run(1, joined=False)
    run.says(Join(id="a", source="n", boot="a", after=0), Join(id="b", source="n", boot="b", after=0))
    assert [(said.boot, said.incarnation) for said in run.said if isinstance(said, SourceJoined)] == [("a", 1)]
    assert run.state.pending == ()


def test_a_wish_for_a_name_that_comes_late_does_not_take_it_from_who_has_it_by_now() -> None:
    run = Run(1, joined=False)
    run.says(Join(id="b", source="n", boot="b", after=0))
    run.says(Join(id="a", source="n", boot="a", after=0))  # of a process that is gone
    assert run.said == ()
    assert run.state.sources["n"].boot == "b"
    run.says(Join(id="c", source="n", boot="c", after=1))
    assert (run.state.sources["n"].boot, run.state.sources["n"].incarnation) == ("c", 2)


def test_a_run_hears_a_limited_number_of_sources() -> None:
    run = Run(1)
    crowd = {f"s{i}": Source(boot="b", incarnation=1) for i in range(SOURCES_MAX_COUNT)}
    state = replace(run.state, sources=crowd)
    assert seen(state, Join(id="x", source="one-more", boot="x")).pending == ()
    assert len(seen(state, Join(id="x", source="s1", boot="x")).pending) == 1


def test_facts_that_happened_before_their_clock_was_known_happened_when_they_were_heard_of() -> None:
    run = Run(1)
    draft = Draft(run.state, run.state.n + 1, 50.0, None)
    assert draft.when(run.queued()) == 50.0
    early = seen(run.state, run.ready())
    draft = Draft(early, early.n + 1, 50.0, None)
    later = run.ready()
    assert draft.when(later) == pytest.approx(run.t)
    assert draft.when(replace(later, clock_s=0.0)) == 50.0
    assert draft.when(replace(later, clock_s=1e9)) == 50.0


def test_a_run_without_a_group_has_nothing_to_lose() -> None:
    run = Run(1)
    draft = Draft(replace(run.state, group=None), run.state.n + 1, 50.0, None)
    draft.lose(frozenset({"local"}))
    assert draft.when(run.queued()) == 50.0
    assert draft.done().group is None
    assert not draft.at_work


def test_no_notice_leaves_nothing_to_cancel() -> None:
    assert cancelled(None, ("n",)) is None


def test_a_silence_and_a_release_in_one_entry_may_stand_in_either_order() -> None:
    found: list[int] = []
    for turned in (False, True):
        run = Run(2, nodes=("node-a", "node-b")).running()
        lost = SilenceConcluded(source="node-a", silence_s=60.0, lost=True, reason="silent")
        said: list[AnyInput] = [lost, run.released()]
        run.says(*(reversed(said) if turned else said))
        found.append(run.group.failed)
    assert found == [2, 2]
    run = Run(1).running()
    lost = SilenceConcluded(source="local", silence_s=60.0, lost=True, reason="silent")
    run.says(lost, lost)
    assert run.group.failed == 1
