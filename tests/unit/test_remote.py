"""Validations on other machines: begun again when they are lost, gone on with by the next supervisor, ended in time."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from runfold.events.assignment import Assignment, Work
from runfold.events.config import ValidationSpec
from runfold.events.facts import AnyFact, TaskEnded
from runfold.events.tasks import Task
from runfold.workers.beside import Beside
from runfold.workers.callbacks import RunContext
from runfold.workers.outside import Order, Question, Said
from runfold.workers.pools.ray import tasks
from runfold.workers.pools.ray.held import Reserved
from runfold.workers.pools.ray.library import ActorLost, ActorUnreachable, Group, RayNode
from runfold.workers.pools.ray.tasks import RayTasks
from runfold.workers.pools.ray.validator import Begin, Over, TaskStanding
from runfold.workers.remote import REMOTE_TRIES_MAX, RemoteTask, RemoteTaskLost
from support.virtual import run_virtual
from support.waiting import until

if TYPE_CHECKING:
    from runfold.workers.pools.local import Demand
    from runfold.workers.pools.ray.book import RayBook
    from runfold.workers.pools.ray.library import Ray

SOURCE = "pool-ray"
RUN = "digits-1"
KEY = f"{RUN}/validation:one"
TASK = Task(id="validation:one", kind="validation", source=SOURCE, arguments={"name": "one", "arguments": {"x": 1}})


class Home(msgspec.Struct):
    run: str = RUN
    base_dir: str = "/nowhere"
    storage_dir: str = "/nowhere"


class Remote:
    """Tasks of a pool elsewhere: each is answered, or lost."""

    def __init__(self, *answers: Said | None, left: bool = False) -> None:
        self.answers = list(answers)
        self.left = left
        self.done: list[RemoteTask] = []

    def holds(self, key: str) -> bool:
        return self.left and key == KEY

    async def do(self, task: RemoteTask) -> Said:
        self.left = False
        self.done.append(task)
        answer = self.answers.pop(0)
        if answer is None:
            raise RemoteTaskLost("its node is gone")
        return answer


def validating(remote: Remote, **resources: float) -> tuple[list[AnyFact], list[str]]:
    """Have a validation done; return what was said, and what was asked for and given back."""
    said: list[AnyFact] = []
    asked: list[str] = []
    job = Work(
        entrypoint="a:b",
        working_dir="jobs",
        secret_env=("TOKEN",),
        validation=ValidationSpec(entrypoint="a:c", resources=resources),
    )
    assignment = Assignment(
        run=RUN, epoch=1, n=1, hash="", attempt=2, want="train", job=job, tasks=(TASK,), runtime_env={"pip": ["x"]}
    )

    async def story() -> None:
        def ask(demand: Demand) -> None:
            asked.append("asked")
            beside.granted(TASK.id)

        async def warm(*_: object) -> object:
            raise OSError("done beside the supervisor")

        beside = Beside(
            Home(),
            SOURCE,
            SimpleNamespace(warm=warm, spawn=warm),  # type: ignore[arg-type]  # as much of it as is used
            None,  # type: ignore[arg-type]  # no code is a blob
            said.append,
            ask,
            lambda _: asked.append("given back"),
            remote,  # type: ignore[arg-type]  # as much of it as is used
            adopt=True,
        )
        beside.hear(assignment)
        await asyncio.wait(beside._doing.values())
        await beside.close()

    run_virtual(story())
    return said, asked


def test_a_validation_is_sent_where_it_holds_something_with_all_that_it_needs_there() -> None:
    remote = Remote(Said(value={"score": 1}))
    said, asked = validating(remote, GPU=1.0)
    (sent,) = remote.done
    assert (sent.key, sent.working_dir, sent.secret_env, sent.runtime_env) == (KEY, "jobs", ("TOKEN",), {"pip": ["x"]})
    assert (sent.question, sent.adopt_within_s) == (Question(hook="one", arguments={"x": 1}), 60.0)
    assert (said[0].value, asked) == ({"score": 1}, ["asked", "given back"])  # type: ignore[union-attr]  # the end of a task


def test_a_validation_that_holds_nothing_is_done_beside_the_supervisor() -> None:
    remote = Remote()
    said, asked = validating(remote, CPU=0.0)
    assert isinstance(said[0], TaskEnded)
    assert said[0].error is not None
    assert (said[0].error.message, remote.done, asked) == ("done beside the supervisor", [], ["given back"])


def test_a_validation_that_is_lost_is_begun_again_elsewhere() -> None:
    said, asked = validating(Remote(None, Said(value={"score": 1})), CPU=1.0)
    assert [fact.outcome for fact in said if isinstance(fact, TaskEnded)] == ["done"]
    assert asked == ["asked", "given back"] * 2


def test_a_validation_that_is_lost_each_time_has_failed() -> None:
    said, asked = validating(Remote(*[None] * REMOTE_TRIES_MAX), CPU=1.0)
    (fact,) = said
    assert isinstance(fact, TaskEnded)
    assert fact.error is not None
    assert (fact.outcome, fact.error.message) == ("failed", "it was lost 4 times: its node is gone")
    assert asked == ["asked", "given back"] * REMOTE_TRIES_MAX


def test_a_validation_that_was_left_is_gone_on_with_and_not_asked_for_again() -> None:
    remote = Remote(None, Said(value={}), left=True)
    _, asked = validating(remote, CPU=1.0)
    assert (asked, len(remote.done)) == (["given back", "asked", "given back"], 2)


# --- on a Ray cluster


class Actor:
    """One that answers as the test says; `None` is no answer."""

    def __init__(self, **answers: object) -> None:
        self.answers: dict[str, object] = {"heed": b"", "end": True, **answers}
        self.called: list[str] = []
        self.told: Begin | None = None

    async def call(self, method: str, *words: object) -> object:
        self.called.append(method)
        if method == "start":
            self.told = msgspec.msgpack.decode(cast("bytes", words[0]), type=Begin)
        if method == "said":
            await until(lambda: "heed" in self.called)
        answer = self.answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        return answer if answer is not None else await asyncio.Event().wait()


class Cluster:
    """As much of Ray, and of its book, as validations use."""

    def __init__(self, actor: Actor | None, **held: float) -> None:
        self._actor = actor
        self.asked: list[str] = []
        self.killed: list[object] = []
        self.reserved: dict[str, Reserved] = {KEY: Reserved(Group(id="7", name="g"), ["id-a"], held)}
        self.released: list[str] = []
        self.suspected: list[str] = []

    async def actor(self, name: str) -> Actor | None:
        return self._actor

    async def create_actor(self, *_: object) -> Actor | None:
        self.asked.append("actor")
        return self._actor

    async def accelerators(self, *_: object) -> list[str]:
        # Elsewhere things go on meanwhile.
        await asyncio.sleep(0)
        self.asked.append("devices")
        return ["3"]

    async def bundles(self, group: Group) -> list[str]:
        return ["id-a"]

    async def kill(self, actor: object) -> None:
        self.killed.append(actor)

    def name_of(self, number: str) -> str:
        return "node-a"

    def node(self, name: str) -> RayNode:
        return RayNode(id="id-a", name=name, addr="10.0.0.1", alive=True, resources={"TPU": 4.0})

    def suspect(self, name: str) -> None:
        self.suspected.append(name)

    def release(self, key: str) -> None:
        if self.reserved.pop(key, None) is not None:
            self.released.append(key)

    def tasks(self) -> RayTasks:
        return RayTasks(cast("Ray", self), cast("RayBook", self), "runfold-", "-ours")


def sent(**changes: object) -> RemoteTask:
    context = RunContext(run_id=RUN, name="", storage_path=None, train_loop_config={}, num_workers=1)
    order = Order(codes=(), context=context, env={"MINE": "1"})
    values: dict[str, object] = {"attempt": 1, "order": order, "question": Question(hook="one"), **changes}
    return RemoteTask(key=KEY, **values)  # type: ignore[arg-type]  # by name


def wanting(*names: Task, run: str = RUN) -> Assignment:
    return Assignment(run=run, epoch=1, n=1, hash="", attempt=1, want="train", tasks=names)


OVER = msgspec.msgpack.encode(Over(said=Said(value={"score": 1}), printed=b"last words\n"))


async def test_it_is_begun_with_its_devices_and_what_it_prints_is_printed_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    actor = Actor(start=True, heed=b"first words\n", said=OVER)
    cluster = Cluster(actor, GPU=1.0, TPU=1.0)
    said = await cluster.tasks().do(sent(secret_env=("TOKEN",), runtime_env={"working_dir": "w"}, working_dir="x"))
    assert (said.value, cluster.killed, "end" in actor.called) == ({"score": 1}, [actor], True)
    assert actor.told is not None
    assert (actor.told.own_dir, actor.told.working_dir, actor.told.resources) == (
        True,
        "x",
        {"GPU": 1.0, "TPU": 1.0},
    )
    assert actor.told.order.env == {
        "TOKEN": "secret",
        "CUDA_VISIBLE_DEVICES": "3",
        "TPU_VISIBLE_CHIPS": "3",
        "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1",
        "TPU_HOST_BOUNDS": "1,1,1",
        "MINE": "1",
        "RUNFOLD_NODE": "node-a",
    }
    assert capsys.readouterr().err == "first words\nlast words\n"
    # An actor that is not told for long what to do gives all back: there is none before its devices are known.
    assert cluster.asked == ["devices", "devices", "actor"]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"start": ActorLost("out of memory")}, "on node-a is gone: out of memory"),
        ({"start": ActorUnreachable("no answer")}, "on node-a is gone: no answer"),
        ({"start": True, "said": ActorLost("its node died")}, "on node-a is gone: its node died"),
        ({"start": True, "said": 7}, "it answered 7"),
    ],
)
async def test_what_cannot_be_watched_is_lost(answers: dict[str, object], words: str) -> None:
    with pytest.raises(RemoteTaskLost, match=words):
        await Cluster(Actor(**answers)).tasks().do(sent())


async def left_behind(cluster: Cluster) -> RayTasks:
    """A supervisor's tasks, of which one was left by an earlier one."""
    made = cluster.tasks()
    cluster.reserved.clear()
    standing = TaskStanding(key=KEY, group="7", resources={"GPU": 1.0})
    await made.find("actor-1", msgspec.msgpack.encode(standing), [Group(id="7", name="g")])
    assert (list(cluster.reserved), made.holds(KEY)) == ([KEY], True)
    return made


async def test_one_that_was_left_is_gone_on_with() -> None:
    actor = Actor(said=OVER)
    made = await left_behind(Cluster(actor))
    made.hear(wanting(TASK))
    made.hear(wanting(run="digits-2"))
    assert (await made.do(sent())).value == {"score": 1}
    assert ("start" in actor.called, made.holds(KEY)) == (False, False)


async def test_one_that_was_left_and_has_ended_since_is_lost() -> None:
    made = await left_behind(Cluster(None))
    with pytest.raises(RemoteTaskLost, match="it ended while there was no supervisor"):
        await made.do(sent())
    assert not made.holds(KEY)


@pytest.mark.parametrize("actor", [Actor(), None], ids=["it lives", "it is gone"])
async def test_one_that_was_left_and_is_wanted_no_more_is_ended(actor: Actor | None) -> None:
    cluster = Cluster(actor)
    made = await left_behind(cluster)
    made.hear(wanting())
    await made.close()
    assert (cluster.released, cluster.killed) == ([KEY], [] if actor is None else [actor])


async def test_one_that_nobody_waits_for_any_more_is_ended_and_left_alone_where_it_is_let_go() -> None:
    for lets_go in (False, True):
        actor = Actor(start=True)
        cluster = Cluster(actor)
        made = cluster.tasks()
        doing = asyncio.create_task(made.do(sent()))
        await until(lambda: "said" in actor.called)  # noqa: B023  # it is awaited here
        if lets_go:
            made.let_go()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        assert ("end" in actor.called, cluster.killed == [actor], KEY in cluster.reserved) == (not lets_go,) * 3


def test_an_actor_that_does_not_end_what_it_does_is_ended_itself() -> None:
    actor = Actor(end=None)
    cluster = Cluster(actor)

    async def story() -> float:
        await cluster.tasks()._end(actor)  # type: ignore[arg-type]  # as much of it as is used
        return asyncio.get_running_loop().time()

    assert run_virtual(story()) == pytest.approx(tasks.TASK_END_TIMEOUT_S)
    assert cluster.killed == [actor]


def test_validations_that_do_not_end_are_waited_for_so_long_when_the_pool_is_closed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(None)

    async def unanswered(_: str) -> None:
        await asyncio.Event().wait()

    async def story() -> float:
        made = await left_behind(cluster)
        monkeypatch.setattr(cluster, "actor", unanswered)
        made.hear(wanting())
        await made.close()
        return asyncio.get_running_loop().time()

    with caplog.at_level(logging.WARNING):
        assert run_virtual(story()) == pytest.approx(tasks.REAP_TIMEOUT_S)
    assert cluster.released == [KEY]
    assert f"end {KEY}: not done within 10 s" in caplog.text


async def test_a_validation_that_cannot_be_ended_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Actor()
    cluster = Cluster(actor)

    async def kill(_: object) -> None:
        raise RuntimeError("Ray is gone")

    made = await left_behind(cluster)
    monkeypatch.setattr(cluster, "kill", kill)
    with caplog.at_level(logging.ERROR):
        made.hear(wanting())
        await made.close()
    assert cluster.released == [KEY]
    assert f"the validation {KEY} could not be ended in order" in caplog.text
    assert "RuntimeError: Ray is gone" in caplog.text
