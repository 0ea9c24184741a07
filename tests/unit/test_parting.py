"""A supervisor that is told to stop: runs have the time that they are told of to save, no more than they need."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from runfold.events.assignment import Assignment, NodesTaken, Want, Work
from runfold.events.facts import PreemptionNoticed
from runfold.workers import supervisor
from runfold.workers.desk import Desk, Site
from runfold.workers.supervisor import Supervisor
from runfold.workers.together import comes_first, until_one_ends
from support.virtual import run_virtual

if TYPE_CHECKING:
    from runfold.events.facts import AnyFact
    from runfold.workers.facts import Facts
    from runfold.workers.pools.pool import Watched

TAKEN = NodesTaken(nodes={"local": (0,)})


@pytest.mark.parametrize(
    ("saved_s", "hurried_s", "left_s"), [(None, None, supervisor.STOP_GRACE_S), (2.0, None, 2.0), (None, 1.0, 1.0)]
)
def test_runs_have_the_time_that_they_are_told_of_to_save_before_a_supervisor_ends_their_runners(
    saved_s: float | None, hurried_s: float | None, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    desk = SimpleNamespace(may_save=True, part=lambda *words: told.append(words))

    async def story() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr("time.monotonic", loop.time)
        stop, hurried, orphaned, began_s = asyncio.Event(), asyncio.Event(), asyncio.Event(), loop.time()
        one = SimpleNamespace(
            _config=SimpleNamespace(adopt=True),
            _desks={"digits": desk},
            _wake=asyncio.Event(),
            _leave_by_s=None,
            _stopped="stopped",
            _tend=lambda *_: None,
            _grant=lambda: told.append("places"),
            _pass_on=lambda: None,
            _capacity=SimpleNamespace(tend=lambda *_: None),
            _slots=None,
        )

        def saved() -> None:
            desk.may_save = False
            one._wake.set()

        if saved_s is not None:
            loop.call_later(saved_s, saved)
        if hurried_s is not None:
            loop.call_later(hurried_s, hurried.set)
        parting = Supervisor._part(cast("Supervisor", one), stop, hurried)
        turns = Supervisor._turns(cast("Supervisor", one))
        alone = comes_first(orphaned, stop)
        tasks = [asyncio.ensure_future(work) for work in (parting, turns, alone)]
        loop.call_soon(stop.set)
        loop.call_soon(orphaned.set)  # who says that it is to stop says nothing more
        await until_one_ends(tasks)
        assert loop.time() - began_s == pytest.approx(left_s)

    run_virtual(story())
    assert told == ["places", (supervisor.STOP_GRACE_S, "stopped")], "no place is given any more"


def desk_of(want: Want, work: Work | None, *runners: bool, told: list[AnyFact] | None = None) -> Desk:
    """A desk with runners that live, or do not."""
    said = told if told is not None else []
    facts = SimpleNamespace(source="pool-local", boot="b1", say=said.append)
    order = Assignment(run="digits", epoch=1, n=1, hash="", attempt=1, want=want, pool="local", job=work)
    site = Site(url="", namespace="", pool="local", base_dir="")
    desk = Desk(order, cast("Facts", facts), site, lambda *_: cast("Watched", None), lambda: None)
    desk.runners = [cast("Watched", SimpleNamespace(node=f"n{i}", alive=alive)) for i, alive in enumerate(runners)]
    return desk


@pytest.mark.parametrize(
    ("desk", "may_save"),
    [
        (desk_of("train", Work(entrypoint="a:b"), True), True),
        (desk_of("train", Work(entrypoint="a:b", taken=TAKEN, wanted="preemption-1"), True), True),
        (desk_of("train", Work(entrypoint="a:b", taken=TAKEN), True), False),
        (desk_of("train", Work(entrypoint="a:b"), False), False),
        (desk_of("place", Work(entrypoint="a:b"), True), False),
        (desk_of("stop", None, True), False),
    ],
    ids=["not heard yet", "saves", "has saved", "has gone", "without ranks", "is told to stop"],
)
def test_who_is_waited_for(desk: Desk, *, may_save: bool) -> None:
    assert desk.may_save is may_save


def test_a_run_is_told_once_that_its_supervisor_goes() -> None:
    told: list[AnyFact] = []
    desk = desk_of("train", Work(entrypoint="a:b"), True, False, told=told)
    desk.part(5.0, "stopped")
    desk.part(5.0, "stopped")
    assert [(fact.nodes, fact.within_s) for fact in told if isinstance(fact, PreemptionNoticed)] == [(("n0",), 5.0)]
