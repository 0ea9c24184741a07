"""What a supervisor does beside a run's group: whatever it trips over is told as the end of that task alone."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from runfold.events.assignment import Assignment, Work
from runfold.events.facts import AnyFact, TaskEnded
from runfold.events.tasks import Task
from runfold.workers.beside import Beside
from support.waiting import until

SOURCE = "pool-local"
WORK = Work(entrypoint="a:b")


class Home(msgspec.Struct):
    run: str = "digits-1"
    base_dir: str = "/nowhere"
    storage_dir: str = "/nowhere"


class Nursery:
    """A fork server with a bug in it, or that never is ready."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def warm(self) -> object:
        if self.error is not None:
            raise self.error
        return await asyncio.Event().wait()


def beside(said: list[AnyFact], error: Exception | None) -> Beside:
    nursery = Nursery(error)
    return Beside(Home(), SOURCE, nursery, None, said.append, lambda _: None, lambda _: None)  # type: ignore[arg-type]  # as much of them as is used


def assignment(*tasks: Task) -> Assignment:
    return Assignment(run="digits-1", epoch=1, n=1, hash="", attempt=2, want="train", job=WORK, tasks=tasks)


def task(name: str, kind: str = "seal") -> Task:
    return Task(id=name, kind=kind, source=SOURCE, arguments={"hook": "after_report"})


@pytest.mark.parametrize("kind", ["seal", "hook"])
async def test_a_task_that_meets_a_bug_is_told_as_failed(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    said: list[AnyFact] = []
    here = beside(said, ZeroDivisionError("a bug"))
    here.hear(assignment(task("one", kind)))
    await until(lambda: bool(said))
    (end,) = said
    assert isinstance(end, TaskEnded)
    assert end.error is not None
    assert (end.task, end.attempt, end.outcome) == ("one", 2, "failed")
    assert caplog.records[0].exc_info is not None
    await here.close()


async def test_a_task_that_is_wanted_no_more_is_left_without_a_word() -> None:
    said: list[AnyFact] = []
    here = beside(said, None)
    here.hear(assignment(task("one")))
    await asyncio.sleep(0)
    here.hear(assignment())
    await here.close()
    assert said == []
