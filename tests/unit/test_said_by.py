"""The word to stop names the assignment behind it, on every way from the supervisor to its runner."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from runfold.events.assignment import Assignment, PlaceWanted
from runfold.workers.adopted import AdoptedRunner
from runfold.workers.desk import Desk, Site
from runfold.workers.heirs import Door
from runfold.workers.mending import Mend
from runfold.workers.pipe import StopNow
from runfold.workers.places import Place, socket_path
from runfold.workers.placing import demand_of
from runfold.workers.pools.ray.actor import Attendant
from runfold.workers.processes import start_time
from runfold.workers.ties import Ties

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.workers.facts import Facts
    from runfold.workers.pipe import RunnerSpec, SupervisorPipe
    from runfold.workers.pools.pool import Watched

MARK = (2, 7, 0)
ORDER = Assignment(
    run="digits",
    epoch=2,
    n=7,
    hash="",
    attempt=1,
    want="train",
    places=(PlaceWanted(node="a", slots=1, source="a", left=7),),
)


class Told:
    """A runner that keeps what it is told."""

    def __init__(self) -> None:
        self.node, self.alive, self.words = "a", True, list[tuple[object, ...]]()

    def stop(self, *words: object) -> None:
        self.words.append(words)


def desk() -> tuple[Desk, Told]:
    """A desk with one runner."""
    site = Site(url="", namespace="", pool="local", base_dir="")
    facts = cast("Facts", SimpleNamespace(source="s", boot="b"))
    made = Desk(ORDER, facts, site, lambda *_: cast("Watched", None), lambda: None)
    runner = Told()
    made.runners = [cast("Watched", runner)]
    return made, runner


def test_a_group_that_is_to_stop_is_told_by_which_assignment() -> None:
    made, runner = desk()
    made.stop_runners("the run ends", 5.0)
    assert runner.words == [("the run ends", 5.0, MARK)]


def test_so_is_a_runner_on_a_place_that_the_group_has_left() -> None:
    made, runner = desk()
    made.mends(Mend(place=0, left=7, demand=demand_of(ORDER)))
    assert [words[-1] for words in runner.words] == [MARK]


def test_of_several_words_the_least_patience_and_the_newest_assignment_count() -> None:
    ties = Ties(cast("RunnerSpec", None), cast("SupervisorPipe", None), None, None)
    for grace_s, said_by in ((5.0, None), (9.0, MARK), (1.0, (2, 6, 0)), (3.0, None)):
        ties.order(StopNow(reason="enough", grace_s=grace_s, said_by=said_by))
    assert ties.stop == StopNow(reason="enough", grace_s=1.0, said_by=MARK)


async def test_a_runner_that_an_earlier_supervisor_started_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / "place"
    door = await Door.open(socket_path(path))
    pid = os.getpid()
    place = Place(run="digits", pool="p", node="a", source="a", attempt=1, pid=pid, started=start_time(pid), slots=1)
    runner = AdoptedRunner(path, place, lambda: None)
    try:
        # With more patience than the test has: this process stands for the runner, which is killed after it.
        runner.stop("the run ends", 600.0, MARK)
        async with asyncio.timeout(60):
            heir = await door.heir(60)
            assert heir is not None
            assert await heir.receive() == StopNow(reason="the run ends", grace_s=600.0, said_by=MARK)
        heir.close()
    finally:
        await runner.let_go()
        door.close()


async def test_an_actor_passes_it_on() -> None:
    runner = Told()
    await Attendant.stop(cast("Attendant", SimpleNamespace(_runner=runner)), "the run ends", 5.0, MARK)
    assert runner.words == [("the run ends", 5.0, MARK)]
