"""The keeper as a process: asked, killed over a task, replaced, and made to end when it takes too long."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from runfold.events.tasks import Task
from runfold.workers.hand import Hand
from runfold.workers.keeper import Ask
from runfold.workers.layout import StorageSpec
from runfold.workers.spawner import Spawner
from runfold.workers.zygote import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_S = 60.0


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    """A hand on the keeper of a fork server of its own."""
    spawner = Spawner.launch("runfold.workers.child:main", Role.RANKS)
    await spawner.start()
    made = Hand(spawner)
    yield made
    await made.close()
    await spawner.close()


def ask(folder: Path, kind: str = "open", **env: str) -> Ask:
    return Ask(
        task=Task(id="t", kind=kind), run="r1", spec=StorageSpec(url=str(folder), name="n"), env=env, retries_max=0
    )


def keeper() -> psutil.Process:
    (found,) = [one for one in psutil.Process().children(recursive=True) if one.name() == "runfold-keeper"]
    return found


async def test_it_serves_one_task_after_another_in_one_process(hand: Hand, tmp_path: Path) -> None:
    answer = await hand.ask(ask(tmp_path), PATIENCE_S)
    assert answer.error is None
    first = keeper().pid
    answer = await hand.ask(ask(tmp_path, "dance"), PATIENCE_S)
    assert answer.error is not None
    assert "knows no task of kind 'dance'" in answer.error.message
    assert keeper().pid == first


async def test_what_is_asked_next_is_not_answered_with_what_was_given_up(hand: Hand, tmp_path: Path) -> None:
    await hand.ask(ask(tmp_path), PATIENCE_S)
    keeper().suspend()
    given_up = asyncio.create_task(hand.ask(ask(tmp_path, "dance"), PATIENCE_S))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert (await hand.ask(ask(tmp_path), PATIENCE_S)).error is None


async def test_one_that_was_killed_is_replaced(hand: Hand, tmp_path: Path) -> None:
    assert (await hand.ask(ask(tmp_path), PATIENCE_S)).error is None
    keeper().send_signal(signal.SIGKILL)
    assert (await hand.ask(ask(tmp_path), PATIENCE_S)).error is None


async def test_one_that_takes_too_long_costs_it_its_life(hand: Hand, tmp_path: Path) -> None:
    assert (await hand.ask(ask(tmp_path), PATIENCE_S)).error is None
    stopped = keeper()
    stopped.suspend()
    answer = await hand.ask(ask(tmp_path), 0.2)
    assert answer.error is not None
    assert "not done within 0.2 s" in answer.error.message
    stopped.wait(PATIENCE_S)
    assert (await hand.ask(ask(tmp_path), PATIENCE_S)).error is None
