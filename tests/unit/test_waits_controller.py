"""What a controller waits for is waited for so long, in virtual time: brokers, beats, loops, runs that let go."""

from __future__ import annotations

import asyncio
import logging
import os
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from runfold.controller import ears, host, intake, latest, loop, patience
from runfold.controller.ears import Ears
from runfold.controller.host import Host
from runfold.controller.latest import Latest
from runfold.controller.loop import Loop
from runfold.controller.patience import Patience
from runfold.controller.ports import Unavailable
from runfold.events.job import Job, encode_job
from runfold.events.pools import SetCapacity
from runfold.events.refusal import JobRefused
from runfold.events.requests import AbortRun
from runfold.workers import capacity, limits, zygote
from runfold.workers.capacity import Capacity
from runfold.workers.handle import RankHandle
from runfold.workers.processes import Exit
from runfold.workers.zygote import ForkServer
from support.hosting import hosting, job, status, taken
from support.memory_ports import MemoryWorld
from support.silent import SilentConnection, passed
from support.virtual import run_virtual
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.controller.host import Hosted
    from runfold.controller.liveness import Heard
    from runfold.workers.desk import Desk
    from runfold.workers.pools.pool import Book


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def never(*_: object) -> None:
    await asyncio.Event().wait()


# --- what is asked again


def test_the_broker_is_asked_again_and_what_is_shown_is_shown_again_at_most_so_rarely() -> None:
    asked: list[float] = []
    shown: list[float] = []

    async def ask() -> None:
        asked.append(now_s())
        raise Unavailable("away")

    async def show(_: int) -> None:
        shown.append(now_s())
        raise Unavailable("away")

    async def story() -> None:
        newest = Latest[int](show)
        newest.offer(1)
        tasks = [asyncio.create_task(newest.serve()), asyncio.create_task(Patience("ctl-0").ask(ask))]
        await asyncio.sleep(30.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(story())
    for times, limit_s in ((asked, patience.RETRY_MAX_S), (shown, latest.RETRY_MAX_S)):
        pauses = [after - before for before, after in pairwise(times)]
        assert pauses[0] < limit_s / 4
        assert pauses[8:] == pytest.approx([limit_s] * len(pauses[8:]))


# --- hearing


def heard(
    monkeypatch: pytest.MonkeyPatch, pongs: Callable[[int], bool], late_s: Callable[[int], float] = lambda _: 0.0
) -> list[float]:
    """Return how much of each tick could be observed: which PINGs are answered, how late which ticks come."""
    ticks: list[float] = []

    async def story(c: SilentConnection) -> None:
        behind = [0.0]
        asked = [0]
        monkeypatch.setattr(ears, "time", SimpleNamespace(monotonic=lambda: now_s() + behind[0]))

        async def flush(timeout: int = 10) -> None:
            asked[0] += 1
            if not pongs(asked[0]):
                await never()

        def on_tick(_: Heard, tick_s: float) -> None:
            ticks.append(tick_s)
            behind[0] += late_s(len(ticks))

        monkeypatch.setattr(c.server_side, "flush", flush)
        one = Ears(c)
        await one.run("digits-1").open("local", on_tick)
        await asyncio.sleep(20 * ears.TICK_S + 0.1)
        await one.close()

    outcome, _ = passed(story)
    assert outcome is None
    return ticks


def test_a_ping_that_is_not_answered_is_given_up_and_nothing_is_concluded_of_that_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = heard(monkeypatch, lambda number: number > 1)
    silent = round(ears.PONG_TIMEOUT_S / ears.TICK_S)
    assert ticks[: silent + 1] == [0.0] * (silent + 1)
    assert ticks[silent + 3 :] == pytest.approx([ears.TICK_S] * len(ticks[silent + 3 :]))
    assert len(ticks) > silent + 10


def test_of_a_tick_that_came_late_nothing_is_concluded(monkeypatch: pytest.MonkeyPatch) -> None:
    late = {5: ears.TICK_LATE_MAX_S / 2, 10: ears.TICK_S + ears.TICK_LATE_MAX_S}
    ticks = heard(monkeypatch, lambda _: True, lambda number: late.get(number, 0.0))
    assert [number for number, tick_s in enumerate(ticks) if tick_s == 0.0] == [0, 10]


# --- loops


def test_a_loop_that_does_not_end_its_turn_is_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> float:
        stop = asyncio.Event()
        stop.set()
        task = asyncio.create_task(never(), name="run digits-1")
        hosted = cast("Hosted", SimpleNamespace(task=task, loop=SimpleNamespace(stop=lambda: None)))
        one = SimpleNamespace(_patience=Patience("ctl-0"), _runs={"digits-1": hosted})
        await Host._stop_when(cast("Host", one), stop)
        at_s = now_s()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return at_s

    assert run_virtual(story()) == pytest.approx(host.STOP_TIMEOUT_S)
    assert caplog.messages == ["run digits-1 did not end its turn within 5 s and was cut short"]


def test_a_quarantine_that_cannot_be_shown_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("away")

    async def story() -> float:
        showing = SimpleNamespace(show_quarantine=away)
        one = SimpleNamespace(run_id="digits-1", _patience=Patience("ctl-0"), _showing=showing, _state=None, _head=None)
        await Loop._mark(cast("Loop", one), "a bug")
        return now_s()

    with caplog.at_level(logging.ERROR):
        assert run_virtual(story()) == pytest.approx(loop.MARK_TIMEOUT_S)
    assert (
        caplog.messages[-1] == "run digits-1: its quarantine could not be shown: the broker did not take it within 10 s"
    )


def test_a_path_that_an_ended_run_never_lets_go_is_refused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "let_go", never)

    def named(run: str) -> Job:
        return msgspec.structs.replace(job(run), name="digits", storage_path="s3://bucket/runs")

    async def story() -> float:
        world = MemoryWorld()
        async with hosting(world):
            one = await taken(world, named("digits-1"))
            one.inbox.publish("request.abort", msgspec.json.encode(AbortRun(id="a1", reason="enough")))
            await until(lambda: status(one).terminal)
            began_s = now_s()
            number = world.jobs.publish(encode_job(named("digits-2")))
            await until(lambda: bool(world.jobs.termed))
            refusal = msgspec.json.decode(world.jobs.refusals[number], type=JobRefused)
            assert refusal.path == "$.storage_path"
            assert refusal.reason.startswith("run 'digits-1' writes to s3://bucket/runs")
            return now_s() - began_s

    assert intake.LET_GO_TIMEOUT_S <= run_virtual(story()) < 2 * intake.LET_GO_TIMEOUT_S


# --- nodes and ranks that do not go


class Drawn:
    """A book of which one run holds more of a node than there is."""

    nodes = {"node-b": 0}

    def overdrawn(self) -> list[tuple[str, str]]:
        return [("digits-1", "node-b")]


def capacity_of(book: Drawn) -> Capacity:
    return Capacity(cast("Book", book), cast("SilentConnection", None), "local", None, lambda: None)


def test_a_node_is_taken_away_although_its_notice_was_never_acknowledged() -> None:
    told: list[str] = []
    desk = SimpleNamespace(
        notice=lambda *_: told.append("noticed"),
        take_away=lambda *_: told.append("taken"),
        facts=SimpleNamespace(spool=SimpleNamespace(settled=False), superseded=False),
        assignment=SimpleNamespace(room_for=0),
    )
    book = Drawn()
    one = capacity_of(book)
    for at_s in (100.0, 100.0 + capacity.NOTICE_PATIENCE_S - 0.1):
        one.tend(cast("Book", book), {"digits-1": cast("Desk", desk)}, at_s)
        assert told == ["noticed"]
    one.tend(cast("Book", book), {"digits-1": cast("Desk", desk)}, 100.0 + capacity.NOTICE_PATIENCE_S)
    assert told == ["noticed", "taken"]


def test_a_wish_that_gives_runs_longer_than_a_day_is_refused() -> None:
    wish = SetCapacity(id="w", slots=1, within_s=capacity.WITHIN_MAX_S + 1, by="ada")
    answer = capacity_of(Drawn())._done(wish)
    assert answer.reason == "within_s: must be 0 to 86400, not 86401"


def test_the_link_of_a_dead_rank_that_others_hold_open_is_read_no_longer() -> None:
    closed: list[bool] = []

    async def nothing() -> None:
        return None

    async def ended() -> Exit:
        return Exit(pid=4711, code=0)

    async def story() -> float:
        one = SimpleNamespace(
            _watch_link=nothing,
            _process=SimpleNamespace(wait=ended),
            _link=SimpleNamespace(resume=lambda: None, ended=never),
            _outputs=[],
            close=lambda: closed.append(True),
            result=None,
        )
        end = await RankHandle.wait(cast("RankHandle", one))
        assert end.exit == Exit(pid=4711, code=0)
        return now_s()

    assert run_virtual(story()) == pytest.approx(limits.LINK_DRAIN_TIMEOUT_S)
    assert closed == [True]


def test_a_fork_server_ends_although_what_it_killed_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    woken, wake = os.pipe2(os.O_NONBLOCK)
    os.write(wake, b"x" * 64)

    def children(recursive: bool = False) -> list[object]:
        looked.append(recursive)
        return [] if recursive else ["stuck"]

    monkeypatch.setattr(zygote, "psutil", SimpleNamespace(Process=lambda: SimpleNamespace(children=children)))
    monkeypatch.setattr(zygote, "time", SimpleNamespace(monotonic=lambda: float(len(looked) // 2)))
    one = SimpleNamespace(_alive=set(), _reap=lambda: None, _wake_read=woken)
    ForkServer._end_children(cast("ForkServer", one))
    os.close(woken)
    os.close(wake)
    assert looked.count(False) == limits.REAP_TIMEOUT_S
