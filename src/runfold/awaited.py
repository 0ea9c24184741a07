"""Runs that nobody takes up: said once, when it has lasted longer than a supervisor needs to be heard."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from runfold.controller.status import waiting_for_supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from runfold.follow import Following

LOOK_EVERY_S: Final = 2.0
"""So long a run has waited at least when it is said; a supervisor that is there speaks within a tenth of it."""


@asynccontextmanager
async def supervisor_awaited(following: Following, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Say that a run waits for a controller or a supervisor that has not spoken, for as long as the block lasts."""
    telling = asyncio.ensure_future(_tell(following, say))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(following: Following, say: Callable[[str], None]) -> None:
    said: str | None = None
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = awaited(following)
        if now is not None and now != said:
            say(f"{following.run}: waiting: {now}")
        said = now


def awaited(following: Following) -> str | None:
    """Return who is to speak before anything can happen; None when everybody has."""
    state = following.state
    if state is None:
        return "a controller: none has taken the job yet"
    return None if state.terminal else waiting_for_supervisor(state)
