"""How long this process has waited, and for what: told with its next report, so that goodput can be told from the log.

A rank is a process, so the account is the process's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeVar

from runfold.workers.processes import tell

T = TypeVar("T")

Waited = Literal["data", "checkpoint_save", "checkpoint_restore"]

TELL_EVERY_S: Final = 60.0
"""How often a rank says what it is still waiting for."""
_PLACES: Final = 6
_lock = threading.Lock()
_spent: dict[str, float] = {}


def waited(what: Waited, seconds: float) -> None:
    """Count time that was waited."""
    with _lock:
        _spent[what] = _spent.get(what, 0.0) + seconds


def taken() -> dict[str, float]:
    """Return what was waited since this was asked last."""
    if not _spent:
        return {}
    with _lock:
        found = {what: round(seconds, _PLACES) for what, seconds in _spent.items()}
        _spent.clear()
    return found


@contextmanager
def waiting(what: Waited) -> Iterator[None]:
    """Count the time of the block."""
    began = time.monotonic()
    try:
        yield
    finally:
        waited(what, time.monotonic() - began)


@contextmanager
def told_on(what: str, every_s: float = TELL_EVERY_S) -> Iterator[None]:
    """Say in the rank's output, each `every_s`, that the block goes on; `what` is it that takes so long."""
    over = threading.Event()

    def tell_on() -> None:
        seconds = every_s
        while not over.wait(every_s):
            tell(f"runfold: {what} has taken {seconds:g} s; it goes on")
            seconds += every_s

    telling = threading.Thread(target=tell_on, name="runfold-waits", daemon=True)
    telling.start()
    try:
        yield
    finally:
        over.set()
        telling.join()


def timed(what: Waited, items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and count how long each was waited for."""
    iterator = iter(items)
    while True:
        began = time.monotonic()
        try:
            item = next(iterator)
        except StopIteration:
            return
        finally:
            waited(what, time.monotonic() - began)
        yield item
