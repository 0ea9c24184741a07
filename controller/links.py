"""Where a path of this machine leads once its links are followed: asked of the file system, which may not answer."""

from __future__ import annotations

import asyncio
import contextlib
import os.path
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FOLLOW_TIMEOUT_S: Final = 2.0


async def as_named(path: str) -> str:
    """Return a path as it is: who asks knows no file system."""
    return path


class Links:
    """Follows links, one path after another: a file system that hangs holds up nobody for long, and only one thread."""

    def __init__(self, follow: Callable[[str], str] = os.path.realpath) -> None:
        self._follow = follow
        self._turn = asyncio.Lock()
        self._stuck = False

    async def real(self, path: str) -> str:
        """Return where a path leads; the path itself when the file system does not say so within `FOLLOW_TIMEOUT_S`."""
        async with self._turn:
            if self._stuck:
                return path
            loop = asyncio.get_running_loop()
            found: asyncio.Future[str] = loop.create_future()

            def answer(real: str) -> None:
                self._stuck = False
                if not found.done():
                    found.set_result(real)

            def look() -> None:
                try:
                    real = self._follow(path)
                except (OSError, ValueError):
                    real = path
                with contextlib.suppress(RuntimeError):  # nobody is there any more to be told
                    loop.call_soon_threadsafe(answer, real)

            # No thread of a pool: this one may hang for good, and is not waited for.
            threading.Thread(target=look, name="links", daemon=True).start()
            try:
                async with asyncio.timeout(FOLLOW_TIMEOUT_S):
                    return await found
            except TimeoutError:
                self._stuck = True
                return path
