"""Looking at ranks: who is asked for stacks, by whose wish, and what is kept of what was found."""

from __future__ import annotations

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.events.conclusions import ProgressStopped
from runfold.events.facts import TaskEnded
from runfold.events.failures import ErrorInfo
from runfold.events.requests import DumpStacks
from runfold.events.stacks import Doing, RankSeen
from runfold.events.transitions import RequestAccepted, RequestRefused, TaskClosed, TaskOrdered
from support.runs import AT, Run

NODES = ("node-a", "node-b")


def ended(run: Run, task: str, *seen: RankSeen, source: str = "node-a", error: ErrorInfo | None = None) -> TaskEnded:
    """What a runner says of a look."""
    return run.number(
        TaskEnded(
            source=source,
            incarnation=0,
            number=0,
            attempt=run.state.attempt,
            task=task,
            outcome="done" if error is None else "failed",
            seen=seen,
            error=error,
        )
    )


def seen(rank: int, doing: Doing = "idle", **more: str) -> RankSeen:
    return RankSeen(rank=rank, life=1, doing=doing, **more)


def test_given_a_wish_to_see_stacks_then_every_runner_is_asked_once() -> None:
    run = Run(3, nodes=NODES).running()
    run.says(DumpStacks(id="r1", by="ada"))
    assert run.the(RequestAccepted).reason == "ada asked to see what the ranks do"
    asked = assignment(run.state, run.head).tasks
    assert [(task.kind, task.source, task.id) for task in asked] == [
        ("stacks", "node-a", "stacks-1.1"),
        ("stacks", "node-b", "stacks-1.2"),
    ]
    run.says(DumpStacks(id="r2", by="bob"))
    assert [task.id for task in assignment(run.state, run.head).tasks][2:] == ["stacks-1.3", "stacks-1.4"]


def test_given_no_rank_at_work_then_there_is_nothing_to_see() -> None:
    run = Run(2)
    run.says(DumpStacks(id="r1"))
    assert run.the(RequestRefused).reason == "no rank is at work"
    run = Run(1).running()
    run.says(run.returned(0))
    run.says(DumpStacks(id="r1"))
    assert run.the(RequestRefused).reason == "no rank is at work"


def test_given_ranks_that_were_seen_then_status_and_log_say_what_they_do() -> None:
    run = Run(2, nodes=NODES).running()
    run.says(DumpStacks(id="r1"))
    first, second = (one.task.id for one in run.state.tasks)
    found = seen(0, "collective", where="job.py:9 in train", waits_in="barrier #3", stacks="sha256:00")
    run.says(ended(run, first, found))
    assert run.the(TaskClosed).reason == "rank 0 waits for the other ranks in barrier #3, at job.py:9 in train"
    shown = status(run.state, run.head, AT).ranks
    assert (shown[0].doing, shown[0].where, shown[0].stacks) == ("collective", "job.py:9 in train", "sha256:00")
    assert shown[1].doing is None
    run.says(ended(run, second, seen(1, "stopped"), source="node-b"))
    assert run.the(TaskClosed).reason == "rank 1 is stopped by a signal: nothing of it runs"
    assert [one.doing for one in run.group.seen] == ["collective", "stopped"]


def test_given_a_second_look_then_the_newer_one_counts() -> None:
    run = Run(1).running()
    found: tuple[Doing, ...] = ("busy", "native")
    for number, doing in enumerate(found, start=1):
        run.says(DumpStacks(id=f"r{number}"))
        run.says(ended(run, f"stacks-1.{number}", seen(0, doing), source="local"))
    assert [one.doing for one in run.group.seen] == ["native"]


def test_given_a_rank_of_another_life_then_it_is_nobody() -> None:
    run = Run(1).running()
    run.says(DumpStacks(id="r1"))
    strangers = RankSeen(rank=0, life=2, doing="idle"), RankSeen(rank=7, life=1, doing="idle")
    run.says(ended(run, "stacks-1.1", *strangers, source="local"))
    assert (run.state.tasks, run.group.seen) == ((), ())


def test_given_a_look_that_found_nobody_then_it_says_so() -> None:
    run = Run(1).running()
    run.says(DumpStacks(id="r1"))
    run.says(ended(run, "stacks-1.1", source="local"))
    assert run.the(TaskClosed).reason == "there was no rank to look at"


def test_given_a_look_that_failed_then_it_says_why() -> None:
    run = Run(1).running()
    run.says(DumpStacks(id="r1"))
    error = ErrorInfo(type="SpawnError", message="gone", kind="controller")
    run.says(ended(run, "stacks-1.1", source="local", error=error))
    assert run.the(TaskClosed).reason == "the ranks on local could not be looked at: SpawnError: gone"


def test_given_a_look_that_outlives_its_attempt_then_nothing_of_it_is_kept() -> None:
    run = Run(1, nodes=("node-a",)).running()
    run.says(DumpStacks(id="r1"))
    run.says(run.exited(0, signal=9))
    run.says(ended(run, "stacks-1.1", seen(0)))
    assert run.state.tasks == ()


def test_given_a_runner_that_is_lost_then_it_is_asked_for_nothing() -> None:
    run = Run(2, nodes=NODES).running()
    run.says(run.runner_lost("node-b"), DumpStacks(id="r1"))
    asked = [said.task.arguments["source"] for said in run.said if isinstance(said, TaskOrdered)]
    assert "node-b" not in asked


def test_given_a_standstill_without_anybody_to_look_at_then_it_is_only_shown() -> None:
    run = Run(1).running()
    run.says(run.returned(0), ProgressStopped(ranks=(0,), quiet_s=70.0, limit_s=None))
    assert run.state.tasks == ()
