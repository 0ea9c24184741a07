"""Asking the broker until it answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from runfold.controller.ports import Unavailable
from runfold.controller.safe import shown
from runfold.events.log import Log, LogFull, LogUnavailable

T = TypeVar("T")

RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 0.5

_log = logging.getLogger(__name__)


class GaveUp(Exception):
    """There was no definite answer for as long as somebody wanted one."""


class Patience:
    """Asks, waiting longer and longer, until there is a definite answer, or until nobody wants one any more."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.over = False

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of `call`. Raises `GaveUp` when patience is over."""
        retry_s = 0.0
        while True:
            try:
                return await call()
            except (LogUnavailable, LogFull, Unavailable) as error:
                if self.over:
                    raise GaveUp(f"{self.who}: {error}") from error
                if retry_s == RETRY_MIN_S:  # one answer that is lost is nothing to speak of
                    _log.warning("%s: waits for the broker, nothing is decided meanwhile: %s", self.who, shown(error))
                retry_s = min(max(2 * retry_s, RETRY_MIN_S), RETRY_MAX_S)
                await asyncio.sleep(retry_s)


async def stored_at_s(log: Log, sequence: int) -> float | None:
    """Return the broker's time of a stored message, None when it is not there."""
    async for stored in log.read(sequence - 1):
        return stored.stored_at_s if stored.sequence == sequence else None
    return None
