"""A simulated process: tasks that end together, a clock of its own, and a switch that lets nothing in or out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar, cast

T = TypeVar("T")

START: Final = datetime(2026, 11, 30, 5, 35, tzinfo=UTC)
CLOCK_MAX_S: Final = 1e6
CURRENT: Final[ContextVar[Process | None]] = ContextVar("process", default=None)
"""Whose code runs: a task belongs to the process of the task that made it."""


class Process:
    """`skew_s` is its monotonic clock's offset, which nobody else knows; `wall_s` how wrong its time of day is."""

    def __init__(self, name: str, boot: str, skew_s: float, on_crash: Callable[[str, BaseException], None]) -> None:
        self.name = name
        self.boot = boot
        self.alive = True
        self.wall_s = 0.0
        self.skew_s = skew_s
        self._on_crash = on_crash
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._awake = asyncio.Event()
        self._awake.set()

    def at(self) -> str:
        """Return its time of day."""
        now = START + timedelta(seconds=asyncio.get_running_loop().time() + self.wall_s)
        return now.isoformat(timespec="microseconds").replace("+00:00", "Z")

    def run(self, act: Callable[[], None]) -> None:
        """Do something as this process."""
        self._context().run(act)

    def spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        """Do some work for as long as it lives; that it raises is a finding."""
        _ = self.task(work, name)

    def task(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """As `spawn`, and return the task."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self.boot} {name}", context=self._context())
        task.add_done_callback(self._check)
        return task

    def own(self, task: asyncio.Task[T]) -> None:
        """Let a task end with this process."""
        kept = cast("asyncio.Task[object]", task)
        self._tasks[kept] = None
        task.add_done_callback(lambda _: self._tasks.pop(kept, None))
        if not self.alive:
            task.cancel()

    def kill(self) -> None:
        """End it where it stands."""
        self.alive = False
        self._awake.set()
        for task in list(self._tasks):
            task.cancel()

    def sleep(self) -> None:
        """Stop it, as SIGSTOP does: nothing leaves it, nothing reaches it."""
        self._awake.clear()

    def wake(self) -> None:
        """Let it go on."""
        self._awake.set()

    @property
    def sleeps(self) -> bool:
        """Whether it is stopped."""
        return not self._awake.is_set()

    async def awake(self) -> None:
        """Wait until it is not stopped. What is dead never goes on."""
        if not self._awake.is_set():
            await self._awake.wait()
        if not self.alive:
            raise asyncio.CancelledError

    def _context(self) -> Context:
        context = copy_context()
        context.run(CURRENT.set, self)
        return context

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self.alive:
            self._on_crash(task.get_name(), error)


def owned_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[object, None, T] | Generator[object, None, T],
    context: Context | None = None,
    name: str | None = None,
) -> asyncio.Task[T]:
    """Make a task of whoever makes it: an event loop's task factory."""
    if not isinstance(work, Coroutine):
        raise TypeError("only coroutines become tasks here")
    task = asyncio.Task(work, loop=loop, context=context, name=name)
    owner = context.get(CURRENT) if context is not None else CURRENT.get()
    if owner is not None:
        owner.own(task)
    return task


@contextmanager
def simulated_time() -> Iterator[None]:
    """Let `time.monotonic` be the clock of whichever process asks; outside of the event loop it stays what it is."""
    real = time.monotonic

    def monotonic() -> float:
        try:
            now_s = asyncio.get_running_loop().time()
        except RuntimeError:
            return real()
        process = CURRENT.get()
        return now_s + (process.skew_s if process is not None else 0.0)

    time.monotonic = monotonic
    try:
        yield
    finally:
        time.monotonic = real
