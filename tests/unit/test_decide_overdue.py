"""Checkpoints that wait for ranks too long: those are looked at, named once, and the run goes on."""

from __future__ import annotations

from msgspec.structs import replace

from runfold.controller.looking import STACKS_TIMEOUT_S
from runfold.events.config import Timeouts
from runfold.events.facts import TaskEnded
from runfold.events.stacks import RankSeen
from runfold.events.transitions import TaskOrdered, Warned
from support.runs import Run

LIMITED = Timeouts(checkpoint_timeout_s=10.0)


def looked_at(run: Run, node: str, *seen: RankSeen) -> TaskEnded:
    """The stacks of a runner's ranks, as it tells them."""
    task = next(one.task.id for one in run.state.tasks if one.task.arguments.get("source") == node)
    return replace(run.task_ended(task, node=node), seen=seen)


def test_given_ranks_that_do_not_pass_then_they_are_looked_at_and_named_once_and_the_run_goes_on() -> None:
    run = Run(3, nodes=("local", "other"), timeouts=LIMITED).running()
    run.says(run.shard(0, 2), run.reported(1, 2), run.reported(2, 1))
    run.waits(11)
    order = run.the(TaskOrdered)
    assert (order.task.kind, order.task.arguments["source"]) == ("stacks", "other")
    assert order.reason.startswith("checkpoint_000002_1 has waited for rank 2 for 10 s: the stacks")
    assert run.none(Warned)
    run.says(looked_at(run, "other", RankSeen(rank=2, life=1, doing="idle", where="train.py:9 in load", stacks="d")))
    warned = run.the(Warned)
    assert warned.ranks == (2,)
    assert (
        "waits for rank 2 on other (last report 1; it waits in Python code, at train.py:9 in load) for more than"
        in warned.reason
    )
    assert run.name == "running"
    assert run.waits(20).said == ()
    run.says(run.reported(2, 2))
    assert run.the(TaskOrdered).task.kind == "seal"


def test_given_a_look_that_finds_nothing_then_the_ranks_are_named_without_it() -> None:
    run = Run(2, timeouts=LIMITED).running()
    run.says(run.shard(0, 0))
    run.waits(11)
    run.waits(STACKS_TIMEOUT_S + 1)
    assert "waits for rank 1 on local (last report -1) for more than" in run.the(Warned).reason


def test_given_ranks_that_pass_while_they_are_looked_at_then_nobody_is_named() -> None:
    run = Run(2, timeouts=LIMITED).running()
    run.says(run.shard(0, 0))
    run.waits(11)
    run.says(run.returned(1))
    assert [order.task.kind for order in run.said if isinstance(order, TaskOrdered)] == ["seal"]
    run.says(looked_at(run, "local"))
    assert run.none(Warned)
