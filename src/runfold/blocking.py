"""Running asynchronous code from a plain function, also where an event loop runs already (a notebook)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run_blocking(work: Coroutine[None, None, T]) -> T:
    """Run a coroutine to its end and return its value."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    from concurrent.futures import ThreadPoolExecutor

    # A loop cannot wait for another one in its own thread.
    with ThreadPoolExecutor(1, thread_name_prefix="runfold") as thread:
        return thread.submit(asyncio.run, work).result()
