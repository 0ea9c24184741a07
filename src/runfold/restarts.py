"""How often, and how soon, something that ended is started again."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from runfold.controller.safe import first_of, root_of, shown_error
from runfold.errors import RunfoldError, ServiceError
from runfold.events.nats.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

WAIT_MIN_S: Final = 0.05
WAIT_MAX_S: Final = 10.0
LIVED_WELL_S: Final = 30.0
"""Whatever lived for so long starts at the shortest wait again."""

GIVE_UP_COUNT: Final = 5
GIVE_UP_WITHIN_S: Final = 60.0


class Backoff:
    """One thing's waits: each twice the one before, until it lived well."""

    def __init__(self, now_s: float) -> None:
        self._started_s = now_s
        self._wait_s = WAIT_MIN_S

    def ended(self, now_s: float) -> float:
        """Return how long to wait before it is started again."""
        if now_s - self._started_s >= LIVED_WELL_S:
            self._wait_s = WAIT_MIN_S
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, WAIT_MAX_S)
        self._started_s = now_s + wait_s
        return wait_s


class Restarts:
    """Says what ended and is started again. With `gives_up`, too many ends in too short a time are an error."""

    def __init__(self, say: Callable[[str], None], *, gives_up: bool) -> None:
        self._say = say
        self._gives_up = gives_up
        self._ends: deque[float] = deque(maxlen=GIVE_UP_COUNT)

    def ended(self, what: str, now_s: float, wait_s: float) -> None:
        """Tell of an end; raise `ServiceError` when it is one too many."""
        if self._gives_up and len(self._ends) == GIVE_UP_COUNT and now_s - self._ends[0] < GIVE_UP_WITHIN_S:
            raise ServiceError(f"{what}\nIt is the {GIVE_UP_COUNT + 1}th end within {GIVE_UP_WITHIN_S:g} s; giving up.")
        self._ends.append(now_s)
        first, _, details = what.partition("\n")
        when = f" in {wait_s:g} s" if wait_s >= 1 else ""
        self._say(f"{first}; starting it again{when}" + (f"\n{details}" if details else ""))


async def kept_up(what: str, work: Callable[[], Coroutine[None, None, None]], say: Callable[[str], None]) -> None:
    """Do some work until cancelled: begun anew after a wait, by whatever it ends, which is said and harms nobody."""
    loop = asyncio.get_running_loop()
    backoff, restarts = Backoff(loop.time()), Restarts(say, gives_up=False)
    while True:
        doing = asyncio.ensure_future(work())
        try:
            await asyncio.wait([doing])
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
        wait_s = backoff.ended(loop.time())
        restarts.ended(f"{what} ended unexpectedly{_why(doing.exception())}", loop.time(), wait_s)
        await asyncio.sleep(wait_s)


def _why(error: BaseException | None) -> str:
    if error is None:
        return ""
    expected = isinstance(first_of(error), RunfoldError | BrokerError | OSError)
    return f": {root_of(error)}" if expected else f": {root_of(error)}\n{shown_error(error)}"
