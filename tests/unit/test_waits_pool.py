"""Ends that do not come: of runners, of what a runner still does, of actors and placement groups on a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from runfold.workers import chores, estate, hatchery, retry, runner, spool, supervisor
from runfold.workers.backends import torch as torch_backend
from runfold.workers.backends import torchlib
from runfold.workers.estate import Estate
from runfold.workers.hatchery import RunnerProcess, StopDeadline
from runfold.workers.placing import SayLost
from runfold.workers.pools.ray import book, handle
from runfold.workers.pools.ray import pool as ray_pool
from runfold.workers.pools.ray.book import RayBook
from runfold.workers.pools.ray.handle import RayRunner
from runfold.workers.pools.ray.library import ActorLost, ActorUnreachable, Group
from runfold.workers.pools.ray.pool import RayPool
from runfold.workers.retry import Retries, retried
from runfold.workers.runner import Runner
from runfold.workers.spool import Spool
from runfold.workers.supervisor import Supervisor
from support.virtual import run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import ModuleType

    from runfold.workers.backends import Meet
    from runfold.workers.backends.torch import TorchBackend
    from runfold.workers.desk import Desk
    from runfold.workers.pools.pool import Left, Pool
    from runfold.workers.pools.ray.library import Actor, Ray


async def never(*_: object) -> None:
    await asyncio.Event().wait()


def lasts(story: Callable[[], Coroutine[None, None, object]]) -> float:
    """Tell a story, and return how long it took."""

    async def told() -> float:
        await story()
        return asyncio.get_running_loop().time()

    return run_virtual(told())


# --- runners


def test_runners_that_do_not_go_are_waited_for_and_said_to_be_lost() -> None:
    told: list[object] = []

    async def settles(timeout_s: float) -> bool:
        await asyncio.sleep(timeout_s)
        return False

    here = SimpleNamespace(node="node-a", code=None, signal=None)
    stubborn = SimpleNamespace(node="node-a", alive=True, wait=never, told=0, here=here)
    desk = SimpleNamespace(
        runners=[stubborn],
        everyone=[stubborn],
        assignment=SimpleNamespace(attempt=1),
        facts=SimpleNamespace(settled=settles),
        part=lambda *words: told.append(("part", *words)),
        stop_runners=lambda *words: told.append(("stop", *words)),
        lost=told.append,
    )

    async def story() -> None:
        await Supervisor._end_those(cast("Supervisor", None), cast("list[Desk]", [desk]), "told to stop")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    assert lasts(story) == pytest.approx(supervisor.RUNNERS_GONE_TIMEOUT_S + supervisor.SETTLE_TIMEOUT_S)
    parts, stop, lost = told
    assert parts == ("part", supervisor.STOP_GRACE_S, "told to stop")
    assert stop == ("stop", "told to stop", supervisor.STOP_GRACE_S)
    assert lost == SayLost(node="node-a", code=None, signal=None, reason="told to stop")


def test_a_runner_that_does_not_end_is_killed_by_the_strictest_of_what_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed_s: list[float] = []

    async def kill() -> None:
        killed_s.append(asyncio.get_running_loop().time())

    async def story() -> None:
        monkeypatch.setattr("time.monotonic", asyncio.get_running_loop().time)
        late, gone = StopDeadline("one", kill), StopDeadline("another", kill)
        patient = StopDeadline("a third", kill, 50.0)
        assert [late.tighten(grace_s) for grace_s in (30.0, 5.0, 60.0)] == [True, True, False]
        gone.tighten(1.0)
        gone.cancel()
        patient.tighten(1.0)
        await asyncio.sleep(100.0)
        await asyncio.gather(late.close(), gone.close(), patient.close())

    run_virtual(story())
    assert killed_s == [5.0 + hatchery.STOP_MARGIN_S, 1.0 + 50.0]


def test_a_runner_that_cannot_be_killed_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def kill() -> None:
        raise RuntimeError("Ray is gone")

    async def story() -> None:
        monkeypatch.setattr("time.monotonic", asyncio.get_running_loop().time)
        late = StopDeadline("the runner of digits on node-a", kill)
        late.tighten(1.0)
        await asyncio.sleep(100.0)

    run_virtual(story())
    assert caplog.messages == ["the runner of digits on node-a did not end in time, and could not be killed"]
    assert "RuntimeError: Ray is gone" in caplog.text


async def test_a_runner_that_is_killed_is_told_of_and_one_that_was_not_born_yet_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    woken: list[int] = []
    killed: list[tuple[object, ...]] = []

    async def kill(*words: object, **_: object) -> None:
        killed.append(words)

    monkeypatch.setattr(hatchery, "wake_children", woken.append)
    for child in (None, SimpleNamespace(pid=4711, kill=kill)):
        await RunnerProcess._kill(cast("RunnerProcess", SimpleNamespace(_child=child, _stranger=None)))
    assert (woken, killed) == ([4711], [(signal.SIGKILL,)])
    assert caplog.messages == ["the runner 4711 did not end in time and is killed, with its ranks"]


def test_a_runner_leaves_although_its_ranks_do_not_end() -> None:
    closed: list[str] = []

    def closing(name: str) -> SimpleNamespace:
        async def close() -> None:
            closed.append(name)

        return SimpleNamespace(close=close)

    one = SimpleNamespace(
        group=SimpleNamespace(held=[], close=never),
        chores=closing("chores"),
        _hand=closing("hand"),
        _lighthouse=closing("lighthouse"),
        facts=closing("facts"),
    )
    assert lasts(lambda: Runner._leave(cast("Runner", one))) == pytest.approx(runner.LEAVE_TIMEOUT_S)
    assert closed == ["chores", "hand", "lighthouse", "facts"]


def test_a_runner_that_should_leave_works_on_at_its_tasks_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_hurried", lambda *_: False)
    last_s = 100.0 + chores.ON_LEAVING_MAX_S
    for busy, told in ((True, False), (False, True)):
        monkeypatch.setattr(runner, "may_have_tasks", lambda *_, told=told: told)
        one = SimpleNamespace(_assignment=object(), _ordered=None, _leave_by_s=None, chores=SimpleNamespace(busy=busy))
        looks = [Runner._has_chores(cast("Runner", one), now) for now in (100.0, last_s - 0.1, last_s)]
        assert looks == [True, True, False]


def test_a_runner_that_nobody_claims_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    stopped: list[str] = []
    monkeypatch.setattr(estate, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    pool = SimpleNamespace(settled_s=0.0)
    left = SimpleNamespace(
        place=SimpleNamespace(run="digits-1"), alive=True, stop=lambda reason, _: stopped.append(reason)
    )
    one = Estate(cast("Pool", pool), lambda: None)
    one.keep(cast("Left", left))
    now_s[0] += estate.UNCLAIMED_MAX_S - 0.1
    assert (one.end_unclaimed(), stopped) == ([], [])
    now_s[0] += 0.1
    assert (one.end_unclaimed(), stopped) == ([], ["its run has no assignment any more"])


# --- what is tried again


def test_the_wait_between_tries_of_a_storage_grows_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def broken() -> None:
        raise TimeoutError("slow down")

    monkeypatch.setattr("runfold.workers.retry.random.uniform", lambda *_: 1.0)
    with pytest.raises(TimeoutError):
        retried(broken, Retries(retries_max=9), "put", sleep=waits.append)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, retry.BACKOFF_MAX_S, retry.BACKOFF_MAX_S, retry.BACKOFF_MAX_S]


# --- torch


def test_a_process_group_that_cannot_be_left_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()
    monkeypatch.setitem(sys.modules, "torch.distributed", cast("ModuleType", object()))
    monkeypatch.setattr(torchlib, "distributed", lambda: SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setattr(torch_backend, "_leave", over.wait)
    monkeypatch.setattr(torch_backend, "SHUTDOWN_TIMEOUT_S", 0.02)
    one = SimpleNamespace(_place=SimpleNamespace(world_size=2, options={}))
    torch_backend.TorchBackend.on_shutdown(cast("TorchBackend", one))
    over.set()
    assert capfd.readouterr().err == "runfold: the process group was not left within 0.02 s; going on\n"


def test_torch_is_told_how_long_ranks_may_take_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    dist = SimpleNamespace(
        is_available=lambda: True,
        TCPStore=lambda *words, **_: told.append(words[4]),
        init_process_group=lambda *_, timeout, **__: told.append(timeout),
    )
    monkeypatch.setattr(torchlib, "distributed", lambda: dist)
    monkeypatch.setattr(torch_backend, "_met", lambda *_: SimpleNamespace(addr="127.0.0.1", port=1))
    for name in ("group_environment", "apply_environment"):
        monkeypatch.setattr(torch_backend, name, lambda *_: {})
    place = SimpleNamespace(options={}, rank=1, world_size=2, addr="127.0.0.1")
    one = SimpleNamespace(_place=place, _name="gloo")
    torch_backend.TorchBackend.on_start(cast("TorchBackend", one), cast("Meet", None))
    assert told == [timedelta(seconds=torch_backend.TIMEOUT_S)] * 2


# --- a Ray cluster


def test_groups_that_are_not_given_back_are_waited_for_so_long() -> None:
    async def story() -> None:
        removing = {asyncio.ensure_future(never())}
        await RayBook.close(cast("RayBook", SimpleNamespace(_removing=removing)))
        for task in removing:
            task.cancel()

    assert lasts(story) == pytest.approx(book.CLOSE_TIMEOUT_S)


async def test_a_group_that_could_not_be_given_back_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def remove_group(_: object) -> None:
        raise RuntimeError("Ray is gone")

    one = RayBook(cast("Ray", SimpleNamespace(remove_group=remove_group)), "ours-", "-7")
    with caplog.at_level(logging.ERROR):
        one.remove(Group(id="1", name="ours-digits-1"))
        await one.close()
    assert "the placement group ours-digits-1 could not be given back" in caplog.text
    assert "RuntimeError: Ray is gone" in caplog.text


def test_a_node_is_under_suspicion_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(book, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    one = cast("RayBook", SimpleNamespace(_suspected_s={}))
    RayBook.suspect(one, "node-a")
    looks: list[bool] = []
    for passed_s in (0.0, book.SUSPECT_MAX_S - 0.1, book.SUSPECT_MAX_S):
        now_s[0] = 100.0 + passed_s
        looks.append(RayBook._is_suspect(one, "node-a"))
    assert looks == [True, True, False]


def test_an_actor_that_does_not_answer_any_more_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    silent: list[str] = []
    asked: list[tuple[str, float]] = []

    async def call(method: str, *_: object) -> object:
        asked.append((method, asyncio.get_running_loop().time()))
        if method == "ended" and len(asked) == 1:
            raise ActorUnreachable("the connection is broken")
        await asyncio.Event().wait()
        return None

    async def story() -> None:
        monkeypatch.setattr(handle, "time", SimpleNamespace(monotonic=lambda: 100 + asyncio.get_running_loop().time()))
        one = SimpleNamespace(_adopt_within_s=60.0, _on_silence=silent.append, node="node-a")
        actor = cast("Actor", SimpleNamespace(call=call))
        with pytest.raises(ActorLost, match="it was not to be reached for 3 s: it does not answer"):
            await RayRunner._end_of(cast("RayRunner", one), actor)

    last_s = handle.BROKEN_MAX_S + handle.ANSWER_TIMEOUT_S + handle.AGAIN_S
    assert handle.BROKEN_MAX_S <= lasts(story) <= last_s + 0.001
    assert silent == ["node-a"]
    assert [method for method, _ in asked[1:]] == ["heed"] * (len(asked) - 1)
    assert asked[2][1] - asked[1][1] == pytest.approx(handle.ANSWER_TIMEOUT_S + handle.AGAIN_S)


@pytest.mark.parametrize("is_there", [True, False], ids=["its actor is there", "its actor never comes"])
def test_a_runner_on_a_cluster_that_does_not_end_is_given_up_with_its_actor(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[object, ...]] = []
    killed_s: list[float] = []
    gone = asyncio.Event()

    async def call(method: str, *words: object) -> object:
        if method == "stop":
            told.append(words)
        if method == "ended":
            await gone.wait()
            raise ActorLost("it was killed")
        return None

    async def reach() -> Actor:
        if not is_there:
            await asyncio.Event().wait()
        return cast("Actor", SimpleNamespace(call=call))

    async def kill(_: object) -> None:
        killed_s.append(asyncio.get_running_loop().time())
        gone.set()

    async def story() -> float:
        monkeypatch.setattr("time.monotonic", asyncio.get_running_loop().time)
        ray = cast("Ray", SimpleNamespace(kill=kill))
        one = RayRunner(ray, "node-a", reach, 60.0, lambda: None, lambda _: None, secret=b"s")
        one.stop("wanted elsewhere", 5.0)
        await asyncio.sleep(1.0)
        one.stop("wanted elsewhere", 1.0)
        await asyncio.wait({one._task})
        assert not one.alive
        return asyncio.get_running_loop().time()

    assert run_virtual(story()) == pytest.approx(1.0 + 1.0 + handle.KILL_MARGIN_S)
    assert told == ([("wanted elsewhere", 5.0, None), ("wanted elsewhere", 1.0, None)] if is_there else [])
    assert bool(killed_s) == is_there


def test_an_actor_that_does_not_say_who_it_is_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    killed: list[object] = []
    actor = SimpleNamespace(call=never)

    async def found(_: str) -> object:
        return actor

    async def kill(one: object) -> None:
        killed.append(one)

    async def story() -> None:
        one = SimpleNamespace(_ray=SimpleNamespace(actor=found, kill=kill))
        assert await RayPool._standing(cast("RayPool", one), "runner-1") is None

    with caplog.at_level(logging.WARNING):
        assert lasts(story) == pytest.approx(ray_pool.FIND_TIMEOUT_S)
    assert killed == [actor]
    assert "does not say who it is, and is ended" in caplog.text


# --- facts that nobody folds


def test_what_is_not_folded_is_said_again_ever_more_rarely_up_to_a_limit() -> None:
    waits: list[float] = []
    one = SimpleNamespace(_resend_after_s=5.0, _folded=0, _acked=1, _heard_s=2.0, _acked_s=1.0, _again=None)
    for _ in range(6):
        Spool._begin_again(cast("Spool", one))
        waits.append(one._resend_after_s)
    assert waits == [10.0, 20.0, 40.0, spool.RESEND_AFTER_MAX_S, spool.RESEND_AFTER_MAX_S, spool.RESEND_AFTER_MAX_S]
