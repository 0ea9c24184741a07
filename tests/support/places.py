"""A group of three ranks that keeps its places while others are looked for, for tests of what is decided about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.assignment import assignment
from runfold.controller.status import status
from runfold.events.config import FailureConfig, Timeouts
from support.runs import AT, Run

if TYPE_CHECKING:
    from runfold.events.assignment import Assignment

THREE = ("node-a", "node-b", "node-c")
START_S = Timeouts().start_timeout_s


def at_work() -> Run:
    """Three ranks at work on three nodes."""
    return Run(3, nodes=THREE, failure=FailureConfig(max_failures=3)).running()


def looking(run: Run | None = None) -> Run:
    """The runner on node-b is lost, and another place is looked for."""
    run = run or at_work()
    return run.says(run.runner_lost("node-b"))


def mended(run: Run, number: int, node: str) -> Run:
    """Another place is found, and its runner is ready."""
    run.says(run.place_again(number, node, 1))
    return run.join(node, boot=f"b{run.state.attempt}").says(run.ready(node))


def wanted(run: Run) -> Assignment:
    """What is asked of the pool and its runners."""
    return assignment(run.state, run.head)


def waiting(run: Run) -> str:
    """What the run is said to wait for."""
    return status(run.state, run.head, AT).waiting or ""


def left(run: Run) -> list[str]:
    """The nodes on which the group has given up its places."""
    return [place.node for place in run.group.places if place.left is not None]
