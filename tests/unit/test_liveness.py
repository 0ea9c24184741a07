"""Who is lost, and who stands still: on evidence alone, in time that was observed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.events.conclusions import ProgressStopped, SilenceConcluded
from runfold.events.config import FailureConfig, Timeouts
from runfold.events.facts import TaskEnded
from runfold.events.stacks import Doing, RankSeen, look_begun
from runfold.events.transitions import FailureDecided, TaskOrdered
from support.listening import Listener
from support.runs import POOL, Run

NODES = ("node-a", "node-b")


def group(**more: object) -> Run:
    """A group on two nodes, at work; with restarts to spare."""
    failure = FailureConfig(max_failures=3)
    timeouts = Timeouts(**more)  # type: ignore[arg-type]  # names and seconds
    return Run(2, nodes=NODES, failure=failure, timeouts=timeouts).running()


# --- silence


def test_given_a_silent_runner_then_it_is_shown_and_nothing_is_done() -> None:
    run = group()
    Listener(run).hears("node-a", for_s=59, pool=NODES)
    assert run.state.sources["node-b"].silence_s == 10
    assert run.state.sources["node-a"].silence_s is None
    assert (run.name, run.state.attempt) == ("running", 1)


def test_given_a_runner_that_is_heard_again_then_that_is_shown_too() -> None:
    run = group()
    listener = Listener(run).hears("node-a", for_s=20, pool=NODES)
    listener.hears(*NODES, for_s=1, pool=NODES)
    assert run.state.sources["node-b"].silence_s is None
    assert [type(one) for one in listener.everything] == [SilenceConcluded, SilenceConcluded]


def test_given_a_silent_runner_whose_pool_is_heard_then_it_is_lost_only_after_lost_alone_after_s() -> None:
    run = group()
    listener = Listener(run).hears("node-a", for_s=599, pool=NODES)
    assert run.name == "running"
    listener.hears("node-a", for_s=1, pool=NODES)
    assert run.state.failure is not None
    assert (run.state.failure.kind, run.state.failure.node) == ("node", "node-b")
    assert "lost_alone_after_s is 600" in run.state.failure.error.message


def test_given_a_silent_runner_and_a_silent_pool_then_it_is_lost_after_lost_after_s() -> None:
    run = group()
    listener = Listener(run).hears("node-a", for_s=59.5)
    assert run.name == "running"
    listener.hears("node-a", for_s=0.5)
    assert run.the(FailureDecided).failure.kind == "node"
    assert f"and so was {POOL}" in run.the(FailureDecided).reason
    assert run.state.budgets["worker"].spent == 1
    assert run.state.platform_failures == {"node-b": 1}


def test_given_a_pool_that_no_longer_lists_the_node_then_it_is_lost_after_lost_after_s() -> None:
    run = group()
    Listener(run).hears("node-a", for_s=60, pool=("node-a",))
    assert run.the(FailureDecided).failure.node == "node-b"
    assert "no longer lists the node" in run.the(FailureDecided).reason


def test_given_a_pool_that_fell_silent_later_then_both_must_be_silent_long_enough() -> None:
    run = group()
    listener = Listener(run).hears("node-a", for_s=50, pool=NODES)
    listener.hears("node-a", for_s=59)
    assert run.name == "running"
    listener.hears("node-a", for_s=1)
    assert run.the(FailureDecided).failure.node == "node-b"


def test_given_ten_minutes_in_which_nothing_could_be_heard_then_nothing_is_concluded() -> None:
    run = group()
    listener = Listener(run).hears(*NODES, for_s=5, pool=NODES)
    listener.hears(for_s=600, blind=True).hears(*NODES, for_s=5, pool=NODES)
    assert listener.everything == []


def test_given_a_take_over_then_all_clocks_stand_at_0() -> None:
    run = group()
    listener = Listener(run).hears("node-a", for_s=55)
    listener.taken_over().hears("node-a", for_s=59.5)
    assert run.name == "running"
    listener.hears("node-a", for_s=0.5)
    assert run.none(FailureDecided) is False


def test_given_facts_but_no_beats_then_a_runner_is_heard() -> None:
    run = group()
    listener = Listener(run)
    for index in range(8):
        listener.hears("node-a", for_s=9)
        run.says(run.reported(1, index))
    assert not [one for one in listener.everything if isinstance(one, SilenceConcluded) and one.source == "node-b"]


def test_given_beats_of_an_older_incarnation_then_they_are_no_sign_of_life() -> None:
    run = group()
    listener = Listener(run).hears(*NODES, for_s=5, pool=NODES)
    beats_of_old = run.state.sources["node-b"].incarnation
    run.join("node-b", boot="b2")
    assert run.state.sources["node-b"].incarnation == beats_of_old + 1
    run.says(run.ready("node-b"))
    listener.hears("node-a", for_s=12, pool=NODES)
    assert run.state.sources["node-b"].silence_s == 10


def test_given_a_runner_known_to_be_lost_then_its_silence_says_nothing_more() -> None:
    run = group()
    run.says(run.runner_lost("node-b"))
    listener = Listener(run).hears("node-a", for_s=700)
    assert not [one for one in listener.everything if isinstance(one, SilenceConcluded) and one.source == "node-b"]


def test_given_a_silent_supervisor_alone_then_it_is_shown_and_nobody_is_lost() -> None:
    run = group()
    Listener(run).hears(*NODES, for_s=1000)
    assert run.state.sources[POOL].silence_s == 10
    assert (run.name, run.state.attempt) == ("running", 1)


def test_given_a_runner_that_is_silent_while_the_group_is_started_then_its_start_budget_pays() -> None:
    run = Run(2, nodes=NODES).lays_out()
    Listener(run).hears("node-a", for_s=60)
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.budget) == ("node", "startup")


@pytest.mark.parametrize("name", ["finished", "aborted"])
def test_given_a_run_that_is_over_then_nothing_is_concluded(name: str) -> None:
    run = group().finishing()
    run.says(run.released())
    assert run.name == "finished"
    assert Listener(run).hears(for_s=700).everything == []


# --- progress


def reports(run: Run, listener: Listener, count: int, *, every_s: float = 1.0, ranks: tuple[int, ...] = (0, 1)) -> None:
    """Let ranks report in step."""
    for _ in range(count):
        run.says(*(run.reported(rank, run.group.ranks[rank].index + 1) for rank in ranks), after_s=0.0)
        listener.hears(*NODES, for_s=every_s, pool=NODES)


def stopped(listener: Listener) -> list[ProgressStopped]:
    return [one for one in listener.everything if isinstance(one, ProgressStopped)]


def test_given_ranks_that_report_no_more_then_their_stacks_are_asked_for_and_nothing_is_restarted() -> None:
    run = group()
    listener = Listener(run)
    reports(run, listener, 5)
    listener.hears(*NODES, for_s=58.5, pool=NODES)
    assert stopped(listener) == []
    listener.hears(*NODES, for_s=1.5, pool=NODES)
    (found,) = stopped(listener)
    assert (found.ranks, found.limit_s) == ((0, 1), None)
    assert {task.task.arguments["source"] for task in run.state.tasks} == {"node-a", "node-b"}
    listener.hears(*NODES, for_s=3600, pool=NODES)
    assert len(stopped(listener)) == 1
    assert (run.name, run.state.attempt) == ("running", 1)


def test_given_slow_reports_then_ten_times_their_median_gap_is_waited_for() -> None:
    run = group()
    listener = Listener(run)
    reports(run, listener, 5, every_s=30)
    listener.hears(*NODES, for_s=269, pool=NODES)
    assert stopped(listener) == []
    listener.hears(*NODES, for_s=2, pool=NODES)
    assert stopped(listener)[0].ranks == (0, 1)


def test_given_ranks_that_move_again_then_that_is_said() -> None:
    run = group()
    listener = Listener(run)
    reports(run, listener, 3)
    listener.hears(*NODES, for_s=70, pool=NODES)
    assert run.group.stuck is not None
    reports(run, listener, 1)
    assert stopped(listener)[-1].ranks == ()
    assert run.group.stuck is None


def test_given_one_rank_that_moves_again_then_the_other_is_still_named() -> None:
    run = group()
    listener = Listener(run)
    reports(run, listener, 3)
    listener.hears(*NODES, for_s=70, pool=NODES)
    reports(run, listener, 1, ranks=(0,))
    assert stopped(listener)[-1].ranks == (1,)


def test_given_a_runner_that_is_not_heard_then_its_ranks_are_not_said_to_stand_still() -> None:
    run = group()
    listener = Listener(run)
    reports(run, listener, 3)
    listener.hears("node-a", for_s=120, pool=NODES)
    assert [one.ranks for one in stopped(listener)] == [(0,)]


def test_given_facts_that_are_not_folded_yet_then_nobody_is_said_to_stand_still() -> None:
    run = group()
    listener = Listener(run)
    reports(run, listener, 3)
    listener.hears(*NODES, for_s=120, pool=NODES, missing=4)
    assert stopped(listener) == []


def test_given_a_rank_that_said_it_would_pause_then_its_clock_stands_still() -> None:
    run = group()
    listener = Listener(run)
    reports(run, listener, 3)
    listener.hears(*NODES, for_s=50, pool=NODES)
    listener.hears(*NODES, for_s=500, pool=NODES, paused=(0, 1))
    assert stopped(listener) == []
    listener.hears(*NODES, for_s=12, pool=NODES)
    assert stopped(listener)[0].ranks == (0, 1)


def test_given_a_group_that_never_reports_then_nothing_is_missed() -> None:
    run = group()
    assert stopped(Listener(run).hears(*NODES, for_s=3600, pool=NODES)) == []


def test_given_ranks_that_are_not_yet_in_user_code_then_nothing_is_missed() -> None:
    run = Run(2, nodes=NODES, timeouts=Timeouts(progress_timeout_s=5.0, import_timeout_s=3600.0)).lays_out()
    run.says(run.started(0))
    assert stopped(Listener(run).hears(*NODES, for_s=300, pool=NODES)) == []


# --- the hang budget


def hanging(*, max_hangs: int = 1, reported: int = 3) -> tuple[Run, Listener]:
    """A group whose ranks must report within 20 s, and no longer do."""
    run = Run(
        2,
        nodes=NODES,
        failure=FailureConfig(max_hangs=max_hangs),
        timeouts=Timeouts(progress_timeout_s=20.0),
    ).running()
    listener = Listener(run)
    reports(run, listener, reported)
    listener.hears(*NODES, for_s=20.5, pool=NODES)
    return run, listener


def looked(run: Run, **doing: tuple[Doing, str]) -> tuple[TaskEnded, ...]:
    """What the runners find when they look at their ranks."""
    ended = []
    for open_task in run.state.tasks:
        source = str(open_task.task.arguments["source"])
        rank = NODES.index(source)
        what, where = doing[f"rank_{rank}"]
        seen = RankSeen(
            rank=rank,
            life=1,
            doing=what,
            where=where,
            waits_in="barrier #3" if what == "collective" else None,
            stacks=f"sha256:{rank}",
        )
        said = TaskEnded(
            source=source, incarnation=0, number=0, attempt=1, task=open_task.task.id, outcome="done", seen=(seen,)
        )
        ended.append(run.number(said))
    return tuple(ended)


def test_given_a_hang_then_stacks_come_before_the_decision_and_the_log_links_them() -> None:
    run, listener = hanging()
    assert stopped(listener)[0].limit_s == 20
    assert len([said for said in run.said if isinstance(said, TaskOrdered)]) == 2
    assert run.name == "running"
    run.says(*looked(run, rank_0=("native", "job.py:3 in step"), rank_1=("native", "job.py:3 in step")))
    decided = run.the(FailureDecided)
    assert (decided.failure.kind, decided.budget, decided.failure.rank) == ("hang", "hang", 0)
    assert "native code" in decided.reason
    assert decided.failure.error.blob == "sha256:0"
    told = [item for item in run.entries[-1].inputs if isinstance(item, TaskEnded)]
    assert [seen.stacks for item in told for seen in item.seen] == ["sha256:0", "sha256:1"]


def test_given_ranks_that_wait_for_another_then_the_other_is_to_blame() -> None:
    run, _ = hanging()
    run.says(*looked(run, rank_0=("collective", "job.py:9 in train"), rank_1=("idle", "job.py:7 in train")))
    assert run.the(FailureDecided).failure.rank == 1
    assert run.the(FailureDecided).failure.error.where == "job.py:7 in train"


def test_given_one_that_waits_for_one_that_reported_just_now_then_the_other_is_to_blame_all_the_same() -> None:
    run = Run(2, nodes=NODES, timeouts=Timeouts(progress_timeout_s=20.0)).running()
    listener = Listener(run)
    reports(run, listener, 3)
    reports(run, listener, 20, ranks=(1,))
    assert stopped(listener)[0].ranks == (0,)
    run.says(*looked(run, rank_0=("collective", "job.py:9 in train"), rank_1=("busy", "job.py:7 in train")))
    failure = run.the(FailureDecided).failure
    assert failure.rank == 1
    assert "no report for 20 s from rank 0, which waits for it, and" in failure.error.message


def test_given_stacks_that_never_come_then_it_is_decided_without_them() -> None:
    run, listener = hanging()
    listener.hears(*NODES, for_s=14, pool=NODES)
    assert run.name == "running"
    run.waits(2)
    assert run.the(FailureDecided).failure.kind == "hang"
    assert run.the(FailureDecided).failure.error.blob is None


def test_given_a_spent_hang_budget_then_the_run_ends() -> None:
    run, _ = hanging(max_hangs=0)
    run.says(*looked(run, rank_0=("stopped", ""), rank_1=("idle", "")))
    assert run.name == "shutting_down"
    assert "no hang failure is allowed" in run.state.phase.reason


def test_given_a_group_that_hangs_before_its_first_report_then_the_limit_holds_as_well() -> None:
    run, listener = hanging(reported=0)
    assert stopped(listener)[0].ranks == (0, 1)
    run.says(*looked(run, rank_0=("idle", "a"), rank_1=("idle", "b")))
    assert run.the(FailureDecided).failure.kind == "hang"


def test_given_a_rank_that_never_reports_beside_one_that_does_then_it_is_not_missed() -> None:
    run = Run(2, nodes=NODES, timeouts=Timeouts(progress_timeout_s=20.0)).running()
    listener = Listener(run)
    reports(run, listener, 60, ranks=(0,))
    assert stopped(listener) == []


def test_given_ranks_that_move_while_they_are_looked_at_then_nothing_is_decided() -> None:
    run, listener = hanging()
    reports(run, listener, 1)
    run.says(*looked(run, rank_0=("busy", "a"), rank_1=("busy", "b")))
    assert run.name == "running"
    assert run.state.tasks == ()


def test_given_a_limit_beyond_what_is_shown_then_ranks_are_looked_at_twice() -> None:
    run = Run(2, nodes=NODES, timeouts=Timeouts(progress_timeout_s=100.0)).running()
    listener = Listener(run)
    reports(run, listener, 3)
    listener.hears(*NODES, for_s=65, pool=NODES)
    run.says(*looked(run, rank_0=("idle", "a"), rank_1=("idle", "b")))
    assert (run.name, run.group.looks, len(run.group.seen)) == ("running", 2, 2)
    listener.hears(*NODES, for_s=40, pool=NODES)
    assert [one.limit_s for one in stopped(listener)] == [None, 100]
    assert run.group.looks == 4
    run.says(*looked(run, rank_0=("idle", "a"), rank_1=("idle", "b")))
    assert run.the(FailureDecided).failure.kind == "hang"


def test_given_ranks_that_all_wait_in_collectives_then_those_that_stand_still_are_named() -> None:
    run, _ = hanging()
    run.says(*looked(run, rank_0=("collective", "a"), rank_1=("collective", "b")))
    assert run.the(FailureDecided).failure.rank == 0


def test_given_a_rank_that_returned_then_only_the_others_are_missed() -> None:
    run = group()
    listener = Listener(run)
    reports(run, listener, 3)
    run.says(run.returned(1))
    listener.hears(*NODES, for_s=70, pool=NODES)
    assert [one.ranks for one in stopped(listener)] == [(0,)]


# --- what arrives late


def test_given_conclusions_about_others_then_they_change_nothing() -> None:
    run = group()
    before = run.state
    run.says(
        SilenceConcluded(source="nobody", silence_s=70.0, lost=True, reason="silent"),
        SilenceConcluded(source="node-a", silence_s=70.0, lost=True, reason="silent", incarnation=9),
        ProgressStopped(ranks=(0,), quiet_s=70.0, limit_s=None, attempt=9),
    )
    assert (run.state.group, run.state.sources) == (before.group, before.sources)


def test_given_no_group_then_a_look_is_none() -> None:
    born = Run(1, joined=False).state
    assert look_begun(replace(born, group=None)).group is None
