"""A runner's tasks: each done once, in order, told; what is left of an attempt only when nobody writes to it."""

from __future__ import annotations

import asyncio

import pytest

from runfold.events.assignment import Assignment, Want, Work
from runfold.events.base import Json
from runfold.events.facts import AnyFact, CheckpointSealed, TaskEnded
from runfold.events.failures import ErrorInfo
from runfold.events.nats.errors import Unanswered
from runfold.events.tasks import SealedAs, Task
from runfold.workers.chores import Chores, StorageDoer
from runfold.workers.keeper import Answer, Ask
from runfold.workers.layout import StorageSpec
from runfold.workers.spool import FactTooLargeError
from support.waiting import until

WORK = Work(entrypoint="a:b")


class Keeper:
    """Stands for the hand on a keeper; answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Answer] = {}
        self.open = asyncio.Event()
        self.open.set()

    async def ask(self, ask: Ask, timeout_s: float) -> Answer:
        self.asked.append(ask.task.id)
        await self.open.wait()
        return self.answers.get(ask.task.id, Answer())


class Here:
    """A runner's chores and what surrounds them."""

    def __init__(self) -> None:
        self.keeper = Keeper()
        self.said: list[AnyFact] = []
        self.attempts: set[int] = set()
        self.changes = 0
        self.reachable = True
        self.too_large = False
        doer = StorageDoer("digits-1", self.keeper, self._spec)  # type: ignore[arg-type]  # as much of a hand as is used
        self.chores = Chores("local", doer, self._say, lambda: self.attempts, self._changed)

    async def _spec(self, work: Work) -> StorageSpec:
        if not self.reachable:
            raise Unanswered("blobs", "nobody there")
        return StorageSpec(url="/x", name="y")

    def _say(self, fact: AnyFact) -> None:
        if self.too_large and isinstance(fact, TaskEnded) and fact.error is None:
            raise FactTooLargeError("too much")
        self.said.append(fact)

    def _changed(self) -> None:
        self.changes += 1

    def hears(self, *tasks: Task, want: Want = "train", attempt: int = 1) -> None:
        assignment = Assignment(
            run="digits-1", epoch=1, n=1, hash="", attempt=attempt, want=want, job=WORK, tasks=tasks
        )
        self.chores.hear(assignment)

    @property
    def ends(self) -> list[tuple[str, str]]:
        return [(fact.task, fact.outcome) for fact in self.said if isinstance(fact, TaskEnded)]


def task(task_id: str, kind: str = "seal", source: str = "local", **arguments: Json) -> Task:
    return Task(id=task_id, kind=kind, source=source, arguments=arguments)


async def test_tasks_are_done_once_and_one_after_another() -> None:
    here = Here()
    here.keeper.open.clear()
    here.keeper.answers["s1"] = Answer(sealed=SealedAs(manifest_digest="d", size_bytes=3))
    here.hears(task("s1", name="c", index=4), task("s2"), task("other", source="node-b"))
    here.hears(task("s1", name="c", index=4), task("s2"))
    await until(lambda: here.keeper.asked == ["s1"])
    assert here.chores.busy
    here.keeper.open.set()
    await until(lambda: not here.chores.busy)
    assert here.keeper.asked == ["s1", "s2"]
    (sealed,) = [fact for fact in here.said if isinstance(fact, CheckpointSealed)]
    assert (sealed.name, sealed.index, sealed.manifest_digest, sealed.attempt) == ("c", 4, "d", 1)
    assert here.ends == [("s2", "done")]
    assert here.changes == 2
    await here.chores.close()


async def test_what_another_one_is_to_do_now_is_left_to_it_and_done_when_it_comes_back() -> None:
    here = Here()
    here.keeper.open.clear()
    here.hears(task("s1"), task("s2"))
    await until(lambda: here.keeper.asked == ["s1"])
    here.hears(task("s1", source="node-b"), task("s2"))
    await until(lambda: here.keeper.asked == ["s1", "s2"])
    here.hears(task("s1"), task("s2"))
    here.keeper.open.set()
    await until(lambda: not here.chores.busy)
    assert here.keeper.asked == ["s1", "s2", "s1"]
    assert here.ends == [("s2", "done"), ("s1", "done")]
    await here.chores.close()


@pytest.mark.parametrize("done", [False, True])
async def test_what_is_nobodys_for_a_moment_is_gone_on_with_and_not_begun_again(done: bool) -> None:
    here = Here()
    here.keeper.open.clear()
    here.hears(task("s1"), task("s2"))
    await until(lambda: here.keeper.asked == ["s1"])
    if done:
        here.keeper.open.set()
        await until(lambda: not here.chores.busy)
    here.hears(task("s1", source=""), task("s2", source=""))
    here.hears(task("s1"), task("s2"))
    here.keeper.open.set()
    await until(lambda: not here.chores.busy)
    assert here.keeper.asked == ["s1", "s2"]
    here.hears()
    here.hears(task("s1"))
    await until(lambda: here.keeper.asked == ["s1", "s2", "s1"])
    await here.chores.close()


async def test_what_is_left_of_an_attempt_goes_when_its_ranks_are_gone() -> None:
    here = Here()
    here.attempts = {1}
    here.hears(task("d1", "delete", names=["c"], sealed=False, attempt=1), task("d2", "delete", sealed=True, attempt=1))
    await until(lambda: here.ends == [("d2", "done")])
    assert not here.chores.busy
    here.attempts = {2}
    here.chores.look()
    await until(lambda: here.ends == [("d2", "done"), ("d1", "done")])


async def test_what_a_rank_left_half_uploaded_goes_when_its_attempt_is_over_and_nobody_is_told() -> None:
    here = Here()
    here.hears()
    here.chores.collect(1, {"c"})
    assert here.keeper.asked == []
    here.hears(attempt=2)
    await until(lambda: here.keeper.asked == ["collect:1:c"])
    await until(lambda: not here.chores.busy)
    here.chores.collect(2, {"d"})
    here.hears(want="stop", attempt=2)
    await until(lambda: here.keeper.asked == ["collect:1:c", "collect:2:d"])
    await until(lambda: not here.chores.busy)
    assert here.said == []


async def test_a_task_that_is_withdrawn_is_not_begun() -> None:
    here = Here()
    here.keeper.open.clear()
    here.hears(task("s1"), task("s2"))
    await until(lambda: here.keeper.asked == ["s1"])
    here.hears(task("s1"))
    here.keeper.open.set()
    await until(lambda: not here.chores.busy)
    assert here.keeper.asked == ["s1"]


async def test_trouble_is_told_as_the_tasks_end() -> None:
    here = Here()
    here.keeper.answers["s1"] = Answer(error=ErrorInfo(type="OSError", message="full", kind="storage"))
    here.hears(task("s1"), task("x", "dance"))
    await until(lambda: len(here.ends) == 2)
    assert here.ends == [("x", "failed"), ("s1", "failed")]
    here.reachable = False
    here.hears(task("s3"))
    await until(lambda: here.ends[-1] == ("s3", "failed"))
    here.reachable, here.too_large = True, True
    here.hears(task("s4", "open"))
    await until(lambda: here.ends[-1] == ("s4", "failed"))


async def test_other_kinds_are_done_beside_the_storage_and_a_bug_of_theirs_is_kept() -> None:
    here = Here()

    class Doer:
        async def do(self, task: Task, work: Work) -> AnyFact:
            raise KeyError(task.id)

    here.chores.register("validation", Doer())
    here.keeper.open.clear()
    here.hears(task("s1"), task("v1", "validation"))
    await until(lambda: isinstance(here.chores.crashed, KeyError))
    assert here.chores.busy
    await here.chores.close()
