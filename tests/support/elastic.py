"""Elastic runs in tests: told how many ranks fit, running, about to be resized."""

from __future__ import annotations

from typing import Final

from runfold.events.config import FailureConfig
from support.runs import POOL, Run

DWELL_S: Final = 60.0


def elastic(low: int = 1, high: int = 4, *, fits: int = 4, nodes: tuple[str, ...] = ("local",)) -> Run:
    """A run that is told at once that so many ranks fit."""
    run = Run((low, high), nodes=nodes, joined=False, failure=FailureConfig(max_failures=3))
    run.join(POOL, *nodes)
    return run.says(run.room(fits))


def changed_again(run: Run, fits: int) -> Run:
    return run.says(run.room(fits))


def reported(fits: int = 2) -> Run:
    """A group that has reported without a checkpoint."""
    run = elastic(fits=fits).running()
    return run.says(*(run.reported(rank, 0) for rank in range(fits)))


def planned() -> Run:
    return changed_again(reported(), 4).waits(DWELL_S)


def commits(run: Run, index: int) -> Run:
    run.says(*(run.shard(rank.rank, index) for rank in run.group.ranks))
    task = next(one.task for one in run.state.tasks if one.task.kind == "seal")
    return run.says(run.sealed(str(task.arguments["name"])))
