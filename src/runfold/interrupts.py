"""SIGINT and SIGTERM while a run is waited for: counted, and given back afterwards."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The signals that came: the first asks for an orderly end, a second for an end at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.name = ""

    def came(self, number: signal.Signals) -> None:
        """Note a signal."""
        (self.second if self.first.is_set() else self.first).set()
        self.name = number.name


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Catch both signals for as long as the block lasts; nothing is caught outside of the main thread."""
    caught = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, caught.came, number)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
