"""Every edge of the state machine: those of the table are taken, all others are refused and named."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from runfold.controller.policies import DEFAULT
from runfold.controller.steps import step_of_state
from runfold.events.base import Cause, Moment, absolute, relative
from runfold.events.conclusions import Decider
from runfold.events.edges import EDGES, IllegalEdge, state_name
from runfold.events.entry import Entry
from runfold.events.evolve import evolve
from runfold.events.failures import ErrorInfo, Failure, first_cause
from runfold.events.fold import fold, fold_all
from runfold.events.state import (
    Aborted,
    AnyPhase,
    Errored,
    Finished,
    Group,
    Initializing,
    Preempting,
    Rescheduling,
    Resizing,
    Restarting,
    Running,
    RunState,
    Scheduling,
    ShuttingDown,
)
from runfold.events.transitions import (
    AnyTransition,
    AttemptStarted,
    CheckpointCommitted,
    ControllerChanged,
    FailureDecided,
    FirstCauseRevised,
    GroupLaidOut,
    NodeExcluded,
    RequestAccepted,
    RunAccepted,
    SourceJoined,
    StateChanged,
    StateName,
)
from support.asked import job, unborn
from support.runs import AT, Run

CAUSE = Cause(input=0)
AT_9 = Moment(n=9, t=5.0)
FAILURE = Failure(
    kind="user", attempt=1, node="local", error=ErrorInfo(type="E", message="x", kind="user"), t=1.0, cause=CAUSE
)
ACCEPTED = RunAccepted(job=job(), digest="d", jobs_sequence=1, cause=CAUSE, reason="asked for")

PHASES: dict[StateName, AnyPhase] = {
    state_name(phase): phase
    for phase in (
        Initializing(since_t=0.0, reason="r", cause=CAUSE),
        Scheduling(since_t=0.0, reason="r", cause=CAUSE, num_workers=2),
        Rescheduling(since_t=0.0, reason="r", cause=CAUSE, failure=FAILURE, not_before_t=1.0),
        Running(since_t=0.0, reason="r", cause=CAUSE),
        Preempting(since_t=0.0, reason="r", cause=CAUSE, nodes=("local",), deadline_t=9.0),
        Restarting(since_t=0.0, reason="r", cause=CAUSE, failure=FAILURE, not_before_t=1.0),
        Resizing(since_t=0.0, reason="r", cause=CAUSE, num_workers=1),
        ShuttingDown(since_t=0.0, reason="r", cause=CAUSE, next="finished", deadline_t=9.0),
        Finished(since_t=0.0, reason="r", cause=CAUSE),
        Errored(since_t=0.0, reason="r", cause=CAUSE),
        Aborted(since_t=0.0, reason="r", cause=CAUSE),
    )
}


def in_state(name: StateName, *, end: str = "finished") -> RunState:
    state = replace(Run().state, phase=PHASES[name])
    if isinstance(state.phase, ShuttingDown):
        state = replace(state, phase=replace(state.phase, next=end))
    return state


def change(before: StateName, after: StateName, **fields: object) -> StateChanged:
    """A change with everything that any state could need."""
    full: dict[str, object] = {
        "next": "errored",
        "num_workers": 2,
        "failure": FAILURE,
        "not_before_t": 6.0,
        "deadline_t": 7.0,
        "nodes": ("local",),
    }
    return replace(StateChanged(from_state=before, to_state=after, cause=CAUSE, reason="why"), **{**full, **fields})


ALL: tuple[StateName, ...] = get_args(StateName)
LEGAL = [(before, after) for before in ALL for after in sorted(EDGES[before])]
ILLEGAL = [(before, after) for before in ALL for after in ALL if after not in EDGES[before]]


def test_the_table_knows_every_state() -> None:
    assert set(EDGES) == set(ALL) == set(PHASES)


@pytest.mark.parametrize(("before", "after"), LEGAL)
def test_a_legal_edge_is_taken(before: StateName, after: StateName) -> None:
    end = after if after in ("errored", "aborted") else "errored" if after == "shutting_down" else "finished"
    state = evolve(in_state(before, end=end), change(before, after), AT_9)
    assert state_name(state.phase) == after
    assert state.phase.reason == "why"
    assert state.phase.cause == Cause(entry=9, input=0)
    goes_on = before == after and before != "rescheduling"  # which is another wait
    assert state.phase.since_t == (0.0 if goes_on else 5.0)


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
def test_an_edge_that_is_none_is_refused(before: StateName, after: StateName) -> None:
    with pytest.raises(IllegalEdge, match=f"{before} → {after} is no edge|a terminal state is final"):
        evolve(in_state(before), change(before, after), AT_9)


def test_a_change_from_another_state_is_refused() -> None:
    with pytest.raises(IllegalEdge, match="a change from running, but the run is scheduling"):
        evolve(in_state("scheduling"), change("running", "restarting"), AT_9)


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("initializing", "scheduling", "num_workers"),
        ("scheduling", "rescheduling", "failure"),
        ("running", "restarting", "not_before_t"),
        ("running", "preempting", "deadline_t"),
        ("running", "resizing", "num_workers"),
        ("running", "shutting_down", "next"),
        ("running", "shutting_down", "deadline_t"),
    ],
)
def test_a_change_without_what_its_state_needs_is_refused(before: StateName, after: StateName, field: str) -> None:
    with pytest.raises(IllegalEdge, match=f"{before} → {after} without {field}"):
        evolve(in_state(before), change(before, after, **{field: None}), AT_9)


@pytest.mark.parametrize(
    ("planned", "end", "fine"),
    [
        ("finished", "finished", True),
        ("finished", "errored", True),
        ("finished", "aborted", False),
        ("errored", "errored", True),
        ("errored", "finished", False),
        ("aborted", "aborted", True),
        ("aborted", "errored", False),
    ],
)
def test_the_end_that_was_planned_stays_save_for_a_failed_teardown(planned: str, end: StateName, fine: bool) -> None:
    state = in_state("shutting_down", end=planned)
    for transition in (change("shutting_down", end), change("shutting_down", "shutting_down", next=end)):
        if fine:
            evolve(state, transition, AT_9)
        else:
            with pytest.raises(IllegalEdge, match=f"shutting down to be {planned}, not {end}"):
                evolve(state, transition, AT_9)


def test_a_run_begins_with_its_job_and_only_once() -> None:
    with pytest.raises(IllegalEdge, match="StateChanged before RunAccepted"):
        evolve(unborn(job()), change("initializing", "scheduling"), AT_9)
    born = evolve(unborn(job()), ACCEPTED, Moment(n=0, t=0.0))
    assert (state_name(born.phase), born.run, born.epoch) == ("initializing", "digits", 0)
    assert evolve(unborn(job()), replace(ACCEPTED, job=replace(job(), id=None)), AT_9).run == "job-1"
    with pytest.raises(IllegalEdge, match="RunAccepted for digits, which exists"):
        evolve(born, ACCEPTED, AT_9)


REFUSED: list[tuple[StateName, AnyTransition, str]] = [
    (
        "running",
        ControllerChanged(epoch=3, controller="c", decider=Decider(version="1"), cause=CAUSE, reason="r"),
        "epoch 3 after epoch 1: the log hands out 2",
    ),
    ("running", AttemptStarted(attempt=2, num_workers=2, cause=CAUSE, reason="r"), "cannot begin while running"),
    ("restarting", AttemptStarted(attempt=3, num_workers=2, cause=CAUSE, reason="r"), "attempt 3 after attempt 1"),
    (
        "scheduling",
        GroupLaidOut(attempt=2, layout=(), addr="", port=0, cause=CAUSE, reason="r"),
        "attempt 2 cannot be laid out: not every runner of it is ready",
    ),
    (
        "running",
        GroupLaidOut(attempt=1, layout=(), addr="", port=0, cause=CAUSE, reason="r"),
        "a group cannot be laid out while running",
    ),
    (
        "running",
        FailureDecided(decision="retry", failure=replace(FAILURE, attempt=7), cause=CAUSE, reason="r"),
        "the end of attempt 7 is decided already, or it never began",
    ),
    (
        "running",
        FirstCauseRevised(attempt=1, failure=FAILURE, was=FAILURE, cause=CAUSE, reason="r"),
        "attempt 1 is not the one whose failure was decided last",
    ),
    (
        "running",
        SourceJoined(source="local", boot="b9", incarnation=5, cause=CAUSE, reason="r"),
        "incarnation 5 of local: the log hands out 2",
    ),
]


@pytest.mark.parametrize(("name", "transition", "words"), REFUSED)
def test_what_the_log_would_not_hand_out_is_refused(name: StateName, transition: AnyTransition, words: str) -> None:
    with pytest.raises(IllegalEdge, match=words):
        evolve(in_state(name), transition, AT_9)


def test_places_are_kept_only_where_they_stand() -> None:
    kept = AttemptStarted(attempt=2, num_workers=2, kept=True, cause=CAUSE, reason="r")
    run = Run(2).running()
    held = replace(run.state, phase=PHASES["restarting"])
    assert evolve(held, kept, AT_9).group == Group(attempt=2, num_workers=2, places=run.group.places, kept=True)
    released = replace(held, group=replace(run.group, released=True))
    with pytest.raises(IllegalEdge, match="cannot keep places"):
        evolve(released, kept, AT_9)


def test_an_attempt_is_dealt_with_once() -> None:
    run = Run(2).running()
    decided = FailureDecided(decision="retry", failure=FAILURE, budget="worker", spent=1, cause=CAUSE, reason="r")
    state = evolve(run.state, decided, AT_9)
    with pytest.raises(IllegalEdge, match="the end of attempt 1 is decided already"):
        evolve(state, decided, AT_9)


def test_scheduling_needs_an_attempt_that_is_not_dealt_with() -> None:
    state = evolve(unborn(job()), ACCEPTED, Moment(n=0, t=0.0))
    with pytest.raises(IllegalEdge, match="initializing → scheduling without a new attempt"):
        evolve(state, change("initializing", "scheduling"), AT_9)


def test_parts_of_the_state_that_have_a_transition_of_their_own() -> None:
    state = in_state("running")
    committed = CheckpointCommitted(
        name="checkpoint_1", index=1, attempt=1, manifest_digest="d", cause=CAUSE, reason="sealed"
    )
    after = evolve(state, committed, AT_9)
    assert after.checkpoint is not None
    assert after.checkpoint.name == "checkpoint_1"
    after = evolve(state, NodeExcluded(node="n", failures=2, cause=CAUSE, reason="r"), AT_9)
    assert after.excluded == ("n",)
    after = evolve(state, RequestAccepted(id="unseen", request="abort_run", cause=CAUSE, reason="r"), AT_9)
    assert (after.ending, after.answered[-1].id) == (None, "unseen")


def test_over_or_without_a_group_there_is_nothing_to_do() -> None:
    for name in ("finished", "errored", "aborted"):
        assert step_of_state(in_state(name), DEFAULT) == ()
    assert step_of_state(replace(in_state("running"), group=None), DEFAULT) == ()


def test_causes_point_into_their_entry_or_name_it() -> None:
    assert absolute(Cause(input=3), 7) == Cause(entry=7, input=3)
    assert absolute(Cause(entry=2, input=3), 7) == Cause(entry=2, input=3)
    assert relative(Cause(entry=7, transition=3), 7) == Cause(transition=3)
    assert relative(Cause(entry=2, input=3), 7) == Cause(entry=2, input=3)


def test_no_failures_have_no_first_cause() -> None:
    assert first_cause(()) is None


# --- the fold


def empty_entry(n: int, *transitions: AnyTransition) -> Entry:
    return Entry(
        v=1, run="digits", n=n, t=1.0, at=AT, by="c", epoch=1, cursor=None, inputs=(), transitions=transitions, prev=""
    )


def test_a_log_begins_with_a_run_and_has_no_holes() -> None:
    run = Run()
    assert fold_all(run.entries) == run.state
    with pytest.raises(IllegalEdge, match="no entries"):
        fold_all([])
    with pytest.raises(IllegalEdge, match="does not begin with RunAccepted"):
        fold(None, empty_entry(0))
    with pytest.raises(IllegalEdge, match="does not begin with RunAccepted"):
        fold(unborn(job()), empty_entry(0, change("initializing", "scheduling")))
    with pytest.raises(IllegalEdge, match="entry 9 of digits after entry 1"):
        fold(run.state, empty_entry(9))


def test_the_runs_clock_never_goes_back() -> None:
    run = Run().waits(10.0)
    after = fold(run.state, empty_entry(run.state.n + 1))
    assert after.t == run.state.t
    assert after.cursor == run.state.cursor
