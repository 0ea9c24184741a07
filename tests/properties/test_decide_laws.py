"""The laws of the core and the promises under random plays: whatever is said, in whatever order, the promises hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

import msgspec
from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.controller.decide import decide
from runfold.controller.status import status
from runfold.controller.timers import due_timers
from runfold.events.assignment import Assignment
from runfold.events.conclusions import ControllerStarted, ProgressStopped
from runfold.events.config import FailureConfig
from runfold.events.entry import AnyInput, Entry
from runfold.events.facts import AnyFact, CheckpointSealed, Fact, PlaceReplaced, RankFailed, RankStarted, TaskEnded
from runfold.events.fold import fold, fold_all
from runfold.events.gathering import id_of
from runfold.events.state import Dropped, RunState
from runfold.events.status import Status
from runfold.events.transitions import (
    AttemptStarted,
    ControllerChanged,
    FailureDecided,
    ReplicaGroupReplaced,
    SourceJoined,
)
from support.asked import job, unborn
from support.plays import CONFIGS, PLAYS, SIZES, Grouped, Line, Size, a_run, inputs_of, seen_from_outside, speaker
from support.runs import AT, Run, born_of

Play = list[list[Line]]


def played(size: Size, config: FailureConfig, play: Play) -> Run:
    run = a_run(size, config)
    for lines in play:
        waits = sum(line[2] for line in lines if line[0] == "wait")
        run.says(*inputs_of(run, lines), after_s=0.1 + 2.0 * waits)
    return run


@settings(max_examples=150)
@given(SIZES, CONFIGS, PLAYS)
def test_the_promises_hold_in_every_play(size: Size, config: FailureConfig, play: Play) -> None:
    run = played(size, config, play)
    spent: Counter[int] = Counter()
    attempts: list[int] = []
    lives: dict[tuple[int, int], int] = {}
    epochs: list[int] = []
    incarnations: defaultdict[str, list[int]] = defaultdict(list)
    for said in (said for entry in run.entries for said in entry.transitions):
        match said:
            case FailureDecided(decision="retry"):
                spent[said.failure.attempt] += 1
                assert said.limit < 0 or said.spent <= said.limit
            case FailureDecided(decision="replace"):
                assert said.limit < 0 or said.spent <= said.limit
                assert said.failure.attempt not in spent, "the end of its attempt was decided before"
            case ReplicaGroupReplaced():
                # One that was lost again before it had begun leaves its number behind.
                assert said.life > lives.get((len(attempts), said.group), 1)
                lives[len(attempts), said.group] = said.life
            case AttemptStarted():
                attempts.append(said.attempt)
            case ControllerChanged():
                epochs.append(said.epoch)
            case SourceJoined():
                incarnations[said.source].append(said.incarnation)
            case _:
                pass
        assert said.reason
    assert all(count == 1 for count in spent.values()), "an attempt spends at most one unit"
    assert attempts == list(range(1, len(attempts) + 1))
    assert epochs == list(range(1, len(epochs) + 1))
    for given_out in incarnations.values():
        assert given_out == list(range(1, len(given_out) + 1))


@settings(max_examples=60)
@given(SIZES, CONFIGS, PLAYS)
def test_a_terminal_state_is_final(size: Size, config: FailureConfig, play: Play) -> None:
    run = a_run(size, config)
    for lines in [*play, [("abort", 0, 0)], [("release", 0, 0)], [("wait", 0, 5)] * 4]:
        ended, before = run.state.terminal, run.state
        waits = sum(line[2] for line in lines if line[0] == "wait")
        run.says(*inputs_of(run, lines), after_s=0.1 + 2.0 * waits)
        if ended:
            assert run.said == ()
            assert replace(run.state, n=before.n, t=before.t, cursor=before.cursor) == before
    assert run.state.terminal, f"aborted, released and waited for, and still {run.name}"


@settings(max_examples=80)
@given(SIZES, CONFIGS, PLAYS, st.data())
def test_the_fold_of_a_prefix_and_the_rest_is_the_fold_of_all(
    size: Size, config: FailureConfig, play: Play, data: st.DataObject
) -> None:
    run = played(size, config, play)
    assert fold_all(run.entries) == run.state
    cut = data.draw(st.integers(1, len(run.entries)))
    state = fold_all(run.entries[:cut])
    snapshot = msgspec.json.decode(msgspec.json.encode(state), type=RunState)
    assert snapshot == state
    for entry in run.entries[cut:]:
        snapshot = fold(snapshot, entry)
    assert snapshot == run.state


@settings(max_examples=80)
@given(SIZES, CONFIGS, PLAYS)
def test_deciding_again_on_what_was_recorded_agrees(size: Size, config: FailureConfig, play: Play) -> None:
    run = played(size, config, play)
    state: RunState | None = None
    for entry in run.entries:
        before = unborn(run.entries[0].transitions[0].job) if state is None else state  # type: ignore[union-attr]  # RunAccepted
        assert decide(before, entry.inputs, entry.t).transitions == entry.transitions
        state = fold(state, entry)


STUCK_AGAIN: Final[Play] = [
    [("go on", 0, 0)],
    [("go on", 0, 0)],
    [("place", 0, 0)],
    [("go on", 0, 0), ("stuck", 0, 0), ("stuck", 0, 1)],
]
"""Ranks that move again and then do not, in one entry: their stacks were asked for twice."""


@settings(max_examples=150)
@example(1, FailureConfig(max_failures=-1), STUCK_AGAIN)
@given(SIZES, CONFIGS, PLAYS)
def test_deciding_twice_changes_nothing(size: Size, config: FailureConfig, play: Play) -> None:
    run = played(size, config, play)
    state: RunState | None = None
    for entry in run.entries:
        state = fold(state, entry)
        assert decide(state, (), entry.t).transitions == ()
        # A controller that starts again is another epoch; everything else that is said twice was said once.
        again = [item for item in entry.inputs if not isinstance(item, ControllerStarted)]
        again = [item for item in again if not of_a_life_before(item, entry)]
        assert decide(state, again, entry.t).transitions == ()


def of_a_life_before(item: AnyInput, entry: Entry) -> bool:
    """Whether it is about a life of a rank that is over with this entry: said again, it is about the next one."""
    begun = {said.rank for said in entry.inputs if isinstance(said, RankStarted) and said.life > 1}
    return isinstance(item, ProgressStopped) and not begun.isdisjoint(item.ranks)


def variant(before: RunState, entry: Entry, inputs: list[AnyInput]) -> RunState:
    decided = decide(before, inputs, entry.t)
    return fold(before, replace(entry, inputs=tuple(inputs), transitions=decided.transitions))


@settings(max_examples=200)
@given(SIZES, CONFIGS, PLAYS, st.randoms(use_true_random=False))
def test_within_an_entry_sources_may_speak_in_any_order(
    size: Size, config: FailureConfig, play: Play, chance: object
) -> None:
    run = played(size, config, play)
    state = fold(None, run.entries[0])
    for entry in run.entries[1:]:
        mixed = interleaved(entry.inputs, chance)
        one, other = variant(state, entry, list(entry.inputs)), variant(state, entry, mixed)
        note(f"entry {entry.n}: {[type(item).__name__ for item in mixed]}")
        assert seen_from_outside(one) == seen_from_outside(other)
        state = fold(state, entry)


def test_when_a_rank_failed_is_told_by_the_clock_that_its_runner_had_before_its_place_was_another() -> None:
    on = ("go on", 0, 0)
    lost: Play = [[("place", 0, 0), ("lost", 0, 0)], [on, ("fail", 0, 0)]]
    run = played(Grouped(3, 1), FailureConfig(max_failures=-1), [[on], [on], [on], *lost])
    state, last = fold_all(run.entries[:-1]), run.entries[-1]
    assert [type(item) for item in last.inputs] == [PlaceReplaced, RankFailed]
    one, other = (variant(state, last, list(inputs)) for inputs in (last.inputs, reversed(last.inputs)))
    assert seen_from_outside(one) == seen_from_outside(other)


def interleaved(inputs: tuple[AnyInput, ...], chance: object) -> list[AnyInput]:
    """The inputs in another order, each speaker's own kept.

    Two that say the end of one task are one speaker: the first word on it stands, and one runner alone is to do it.
    """
    ends = [item for item in inputs if isinstance(item, CheckpointSealed | TaskEnded)]
    tasks = Counter(task for task, _ in {(id_of(item), speaker(item)) for item in ends})
    rivals = {speaker(item) for item in ends if tasks[id_of(item)] > 1}
    speakers = ["rivals" if (who := speaker(item)) in rivals else who for item in inputs]
    queues: defaultdict[str, list[AnyInput]] = defaultdict(list)
    for who, item in zip(speakers, inputs, strict=True):
        queues[who].append(item)
    order = [*speakers]
    chance.shuffle(order)  # type: ignore[attr-defined]  # a random.Random
    return [queues[name].pop(0) for name in order]


@settings(max_examples=150)
@given(SIZES, CONFIGS, PLAYS, st.data())
def test_facts_said_twice_change_nothing(size: Size, config: FailureConfig, play: Play, data: st.DataObject) -> None:
    run = played(size, config, play)
    state = fold(None, run.entries[0])
    heard: list[AnyFact] = []
    for entry in run.entries[1:]:
        facts = [item for item in entry.inputs if isinstance(item, Fact)]
        heard += facts
        doubled = list(entry.inputs)
        for item in data.draw(st.lists(st.sampled_from(heard), max_size=3)) if heard else []:
            first = doubled.index(item) + 1 if item in doubled else 0
            doubled.insert(data.draw(st.integers(first, len(doubled))), item)
        one, other = variant(state, entry, list(entry.inputs)), variant(state, entry, doubled)
        # Voices of nobody are counted each time: they have no number to be known by.
        assert seen_from_outside(replace(one, dropped=Dropped())) == seen_from_outside(
            replace(other, dropped=Dropped())
        )
        state = fold(state, entry)


@settings(max_examples=60)
@given(SIZES, CONFIGS, PLAYS)
def test_assignment_and_status_can_be_made_of_every_state(size: Size, config: FailureConfig, play: Play) -> None:
    run = a_run(size, config)
    for lines in play:
        run.says(*inputs_of(run, lines))
        asked, shown = assignment(run.state, run.head), status(run.state, run.head, AT)
        assert msgspec.json.decode(msgspec.json.encode(asked), type=Assignment) == asked
        assert msgspec.json.decode(msgspec.json.encode(shown), type=Status) == shown
        assert (asked.want == "gone") == shown.terminal == run.state.terminal
        assert (asked.want == "train") == (asked.rendezvous is not None)
        assert all(due.deadline_t > run.t for due in due_timers(run.state, run.t)) or run.state.fired == ()


@given(st.integers(1, 64))
def test_a_run_of_any_size_is_accepted(size: int) -> None:
    asked = job(size)
    decision = decide(unborn(asked), born_of(asked), 0.0)
    assert [type(said).__name__ for said in decision.transitions] == [
        "RunAccepted",
        "ControllerChanged",
        "AttemptStarted",
        "StateChanged",
    ]
