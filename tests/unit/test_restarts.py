"""How soon something that ended is started again, and when nobody tries any more."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from runfold.errors import ServiceError, UnreachableError
from runfold.restarts import (
    GIVE_UP_COUNT,
    GIVE_UP_WITHIN_S,
    LIVED_WELL_S,
    WAIT_MAX_S,
    WAIT_MIN_S,
    Backoff,
    Restarts,
    kept_up,
)
from support.virtual import run_virtual
from support.waiting import until


def test_each_wait_is_twice_the_one_before_up_to_a_limit() -> None:
    backoff = Backoff(0.0)
    waits = [backoff.ended(0.0) for _ in range(12)]
    assert waits[:3] == [WAIT_MIN_S, 2 * WAIT_MIN_S, 4 * WAIT_MIN_S]
    assert waits[-1] == WAIT_MAX_S


def test_what_lived_well_is_started_again_soon() -> None:
    backoff = Backoff(0.0)
    assert backoff.ended(1.0) == WAIT_MIN_S
    assert backoff.ended(2.0) == 2 * WAIT_MIN_S
    assert backoff.ended(2.0 + LIVED_WELL_S + 1.0) == WAIT_MIN_S


def test_every_end_is_told() -> None:
    said: list[str] = []
    restarts = Restarts(said.append, gives_up=False)
    for k in range(3 * GIVE_UP_COUNT):
        restarts.ended("the broker ended", float(k), 0.1)
    restarts.ended("the controller ended\nits log", 100.0, 4.0)
    assert said[0] == "the broker ended; starting it again"
    assert said[-1] == "the controller ended; starting it again in 4 s\nits log"
    assert len(said) == 3 * GIVE_UP_COUNT + 1


def test_a_one_shot_run_gives_up_when_something_ends_too_often() -> None:
    restarts = Restarts(lambda _: None, gives_up=True)
    for k in range(GIVE_UP_COUNT):
        restarts.ended("the broker ended", k * GIVE_UP_WITHIN_S / GIVE_UP_COUNT, 0.1)
    restarts.ended("the broker ended", GIVE_UP_WITHIN_S + 1.0, 0.1)
    with pytest.raises(ServiceError, match="the 6th end within 60 s"):
        restarts.ended("the broker ended", GIVE_UP_WITHIN_S + 2.0, 0.1)


def test_work_begins_anew_whatever_it_ends_by_and_is_over_when_it_is_cancelled() -> None:
    said: list[str] = []
    ends: list[Exception | None] = [UnreachableError("nobody there"), ExceptionGroup("x", [KeyError("a bug")]), None]
    begun: list[float] = []
    over: list[bool] = []

    async def work() -> None:
        begun.append(asyncio.get_running_loop().time())
        if len(begun) <= len(ends):
            end = ends[len(begun) - 1]
            if end is not None:
                raise end
            return
        try:
            await asyncio.Event().wait()
        finally:
            over.append(True)

    async def story() -> None:
        working = asyncio.create_task(kept_up("the archiver", work, said.append))
        await until(lambda: len(begun) > len(ends))
        await asyncio.sleep(60)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    run_virtual(story())
    assert over == [True]
    waits = [round(after - before, 3) for before, after in pairwise(begun)]
    assert waits == [WAIT_MIN_S, 2 * WAIT_MIN_S, 4 * WAIT_MIN_S]
    first, bug, ended = said
    assert first == "the archiver ended unexpectedly: UnreachableError: nobody there; starting it again"
    assert bug.startswith("the archiver ended unexpectedly: KeyError: 'a bug'; starting it again\n")
    assert "Traceback" in bug
    assert ended == "the archiver ended unexpectedly; starting it again"
