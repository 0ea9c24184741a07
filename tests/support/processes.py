"""Processes as a test sees them: each may end, and another have its number, between two looks at it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from support.waiting import until, until_seen

if TYPE_CHECKING:
    from collections.abc import Iterable

GONE_TIMEOUT_S = 60.0


def alive(process: psutil.Process) -> bool:
    """Whether a process is at work: one that waits to be reaped is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def name_of(process: psutil.Process) -> str:
    """Return what a process is called; nothing when it has ended."""
    try:
        return process.name() if alive(process) else ""
    except psutil.NoSuchProcess:
        return ""


def under(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all that it has started; nothing when it has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


async def suspended(process: psutil.Process) -> None:
    """Stop a process, and wait until it is: what it has not begun by then it does not do."""
    process.suspend()
    await until(lambda: process.status() == psutil.STATUS_STOPPED)


async def all_gone(processes: Iterable[psutil.Process]) -> None:
    """Wait until none of these is at work."""
    left = list(processes)
    await until(lambda: not any(alive(process) for process in left))


def gone(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Wait for processes to end, and return those that did not."""
    left = list(processes)

    def none_left() -> bool:
        left[:] = [process for process in left if alive(process)]
        return not left

    with suppress(TimeoutError):
        until_seen(none_left, GONE_TIMEOUT_S)
    return left
