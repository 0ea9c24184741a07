"""A loop's watch over its run: conclusions wait until everything said was read, and are said once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.liveness import Beat, Heard
from runfold.controller.vigil import UNSAID_AFTER_S, WORDS_AWAITED_MAX_S, Vigil
from runfold.events.conclusions import SilenceConcluded
from support.runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeEar:
    """An ear that hears what the test says."""

    def __init__(self) -> None:
        self.pool = ""
        self.open_count = 0
        self.on_tick: Callable[[Heard, float], None] = lambda heard, tick_s: None

    async def open(self, pool: str, on_tick: Callable[[Heard, float], None]) -> None:
        self.pool, self.on_tick = pool, on_tick
        self.open_count += 1

    async def close(self) -> None:
        self.open_count -= 1


async def test_a_conclusion_is_said_once_and_only_when_the_inbox_was_read() -> None:
    run, ear, woken = Run(1).running(), FakeEar(), list[int]()
    vigil = Vigil(ear, lambda: woken.append(1))
    await vigil.open(run.state, vigil.tick)
    assert ear.pool == "local"
    for _ in range(20):
        ear.on_tick(Heard(nodes=frozenset(["local"])), 0.5)
    assert woken == [1]
    assert vigil.concluded(caught_up=False) == ()
    ear.on_tick(Heard(nodes=frozenset(["local"])), 0.5)
    assert woken == [1, 1]
    (found,) = vigil.concluded(caught_up=True)
    assert isinstance(found, SilenceConcluded)
    assert found.source == "local"
    ear.on_tick(Heard(nodes=frozenset(["local"])), 0.5)
    assert woken == [1, 1]
    vigil.see(run.says(found).state)
    assert vigil.concluded(caught_up=True) == ()
    ear.on_tick(Heard(beats={"local": Beat(incarnation=1, number=0)}, nodes=frozenset(["local"])), 0.5)
    (found,) = vigil.concluded(caught_up=True)
    assert isinstance(found, SilenceConcluded)
    assert found.silence_s == 0
    await vigil.close()
    assert ear.open_count == 0


async def test_without_an_ear_nothing_is_concluded() -> None:
    vigil = Vigil(None, lambda: None)
    await vigil.open(Run(1).running().state, vigil.tick)
    assert vigil.concluded(caught_up=True) == ()
    await vigil.close()


def test_a_tick_before_there_is_a_run_is_none() -> None:
    vigil = Vigil(FakeEar(), lambda: None)
    vigil.tick(Heard(), 0.5)
    assert vigil.concluded(caught_up=True) == ()


async def test_words_that_the_broker_does_not_take_are_awaited_up_to_a_limit() -> None:
    ear = FakeEar()
    vigil = Vigil(ear, lambda: None)
    await vigil.open(Run(1).running().state, vigil.tick)
    ear.on_tick(Heard(unsaid_s=UNSAID_AFTER_S - 0.1), 0.5)
    seen = [vigil.awaits_words]

    def after(unsaid_s: float, ticks: int = 1) -> bool:
        for _ in range(ticks):
            ear.on_tick(Heard(unsaid_s=unsaid_s), 0.5)
            seen.append(vigil.awaits_words)
        return seen[-1]

    assert not seen[-1]
    assert after(UNSAID_AFTER_S)
    assert after(0.0, 5), "beats come once a second, ticks twice"
    assert not after(0.0)
    assert not after(100.0, int(2 * WORDS_AWAITED_MAX_S) + 1)
    assert sum(seen[-int(2 * WORDS_AWAITED_MAX_S) - 1 :]) == 2 * WORDS_AWAITED_MAX_S - 1
    after(0.0, 6)
    assert after(100.0), "another time"
