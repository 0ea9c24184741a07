"""A supervisor that begins anew: no node stays taken back on account of what the one before said of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.controller.assignment import assignment
from runfold.events.conclusions import ControllerStarted
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.requests import Join, NoticePreemption
from runfold.events.transitions import FailureDecided
from support.runs import DECIDER, POOL, Run

NODES = ("node-a", "node-b")
WITHIN_S = 5.0
"""What a supervisor says that is told to stop."""


def at_work(workers: int | tuple[int, int] = 2, *, nodes: tuple[str, ...] = NODES, coalesce_s: float = 5.0) -> Run:
    run = Run(workers, nodes=nodes, timeouts=Timeouts(coalesce_s=coalesce_s), failure=FailureConfig(max_failures=1))
    return run.running()


def stopped(run: Run) -> Run:
    """Its supervisor is told to stop: notice for all nodes, then every runner is gone, and nothing is held."""
    run.says(run.noticed(*run.nodes, within_s=WITHIN_S, reason="the supervisor of pool local was stopped"))
    run.says(*(run.runner_lost(node) for node in run.nodes))
    assert run.name == "restarting"
    return run.says(run.released())


def off(run: Run) -> tuple[str, ...]:
    return assignment(run.state, run.head).excluded_nodes


def begins_again(run: Run) -> Run:
    """Wait for the next attempt, and longer than any notice lasts; nothing is stayed off, and it is placed."""
    run.waits(WITHIN_S).waits(200.0)
    assert (run.name, run.state.attempt, off(run), run.state.notice) == ("scheduling", 2, (), None)
    assert run.state.budgets["preemption"].spent == 1
    return run


@pytest.mark.parametrize("nodes", [("node-a",), NODES])
def test_given_a_notice_in_force_when_the_next_supervisor_joins_before_the_next_attempt(nodes: tuple[str, ...]) -> None:
    run = stopped(at_work(nodes=nodes))
    run.join(POOL, boot="b2")
    begins_again(run)
    run.says(run.placed(attempt=2)).join(*nodes, boot="b2").says(*(run.ready(node) for node in nodes)).starts()
    assert run.name == "running"


def test_given_a_next_supervisor_that_joins_when_the_attempt_has_begun_or_before_the_last_words_are_folded() -> None:
    late = stopped(at_work()).waits(WITHIN_S)
    assert off(late) == NODES
    begins_again(late.join(POOL, boot="b2"))
    run = at_work()
    notice = run.noticed(*NODES, within_s=WITHIN_S)
    run.says(notice, *map(run.runner_lost, NODES), Join(id="b2", source=POOL, boot="b2"))
    run.numbers[POOL] = 0
    begins_again(run.says(run.released()))


def test_given_a_supervisor_that_could_not_say_what_became_of_its_runners_then_the_next_one_does() -> None:
    run = at_work()
    run.says(run.noticed(*NODES, within_s=WITHIN_S)).join(POOL, boot="b2")
    assert run.name == "preempting", "what it has to leave it leaves as it was told"
    run.says(*(run.runner_lost(node) for node in NODES))
    begins_again(run.says(run.released()))


def test_given_runners_that_the_next_supervisor_adopts_when_the_deadline_is_over_then_they_may_be_had_again() -> None:
    run = at_work()
    run.says(run.noticed(*NODES, within_s=WITHIN_S)).join(POOL, boot="b2").waits(WITHIN_S)
    assert run.the(FailureDecided).failure.kind == "preempted"
    begins_again(run.says(run.released()))


def test_given_an_elastic_run_then_it_has_room_again_on_what_the_next_supervisor_has() -> None:
    run = stopped(at_work((1, 2)))
    run.join(POOL, boot="b2").waits(WITHIN_S)
    run.says(run.room(node_a=1, node_b=1)).waits(200.0)
    assert (run.name, run.state.attempt, off(run), run.group.num_workers) == ("scheduling", 2, (), 2)


def test_given_a_notice_that_the_next_supervisor_repeats_then_the_node_is_stayed_off() -> None:
    run = at_work(coalesce_s=0.0)
    run.says(run.noticed("node-b", within_s=WITHIN_S)).join(POOL, boot="b2")
    run.says(run.noticed("node-b", within_s=WITHIN_S)).waits(WITHIN_S)
    assert off(run) == ("node-b",)


def test_given_somebody_who_named_a_node_when_only_its_supervisor_begins_anew_then_it_is_stayed_off() -> None:
    run = at_work(coalesce_s=0.0)
    run.says(NoticePreemption(id="q", nodes=("node-b",), within_s=60.0)).join(POOL, boot="b2").waits(60.0)
    assert run.the(FailureDecided).failure.kind == "preempted"
    assert off(run) == ("node-b",)


def test_given_somebody_who_named_a_node_that_then_went_with_its_supervisor_then_it_is_used_again() -> None:
    run = at_work(nodes=("node-a",))
    run.says(NoticePreemption(id="q", nodes=("node-a",), within_s=60.0)).join(POOL, boot="b2")
    run.says(run.runner_lost("node-a"))
    begins_again(run.says(run.released()))


def test_given_a_log_of_an_older_decider_then_its_notices_are_folded_as_they_were() -> None:
    run = at_work()
    older = replace(DECIDER, policies=("scaling:by-job", "failure:budgets", "places:mended"))
    stopped(run.says(ControllerStarted(controller="old", decider=older)))
    run.join(POOL, boot="b2").waits(WITHIN_S).waits(200.0)
    assert off(run) == NODES
