"""Waiting for something to come true, with a backstop and without a measure of speed."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

PATIENCE_S = 60.0
"""A backstop on a busy machine, which starts the processes of a run in half of this when it is slow."""
LOOK_EVERY_S = 0.01
ASK_EVERY_S = 0.05
"""How often somebody else is asked, who has other work to do."""


async def until(condition: Callable[[], bool | Awaitable[bool]], patience_s: float = PATIENCE_S) -> None:
    """Return once a condition, looked at again and again, is true; TimeoutError when it never is."""
    async with asyncio.timeout(patience_s):
        while True:
            held = condition()
            if inspect.isawaitable(held):
                held = await held
            if held:
                return
            await asyncio.sleep(LOOK_EVERY_S)


def until_seen(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Return once a condition that takes its time to look at is true; TimeoutError when it never is."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(ASK_EVERY_S)


async def within(patience_s: float, awaited: Awaitable[T]) -> T:
    """Return what is awaited; TimeoutError when it does not come in time."""
    async with asyncio.timeout(patience_s):
        return await awaited
