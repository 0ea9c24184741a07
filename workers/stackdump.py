"""The rank's side of being looked at: on a signal it writes the stacks of all its threads, whatever it does."""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from types import FrameType
from typing import Final

# Not SIGUSR1 or SIGUSR2, which schedulers and training libraries use to say that time is nearly up.
STACK_DUMP_SIGNAL: Final = signal.SIGRTMIN + 9
"""Sent to a rank, makes it write the stacks of all its threads, even while the GIL is held."""
ANSWER: Final = b"\nrunfold: the main thread runs Python code\n"
"""Follows the stacks as soon as the main thread comes to run Python code: never, while it is in native code."""


def show_stacks(fd: int) -> None:
    """Write stacks to a descriptor on the signal, and to stderr on a crash."""
    faulthandler.enable()

    def answer(_number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):
            os.write(fd, ANSWER)

    signal.signal(STACK_DUMP_SIGNAL, answer)
    signal.siginterrupt(STACK_DUMP_SIGNAL, False)
    # The C handler writes at once; then it hands the signal on to Python's, which waits for the interpreter.
    faulthandler.register(STACK_DUMP_SIGNAL, file=fd, all_threads=True, chain=True)


def ignore_signal() -> None:
    """Prepare for another program in this process: a handler would be reset to what ends it, which ignoring is not."""
    faulthandler.unregister(STACK_DUMP_SIGNAL)
    signal.signal(STACK_DUMP_SIGNAL, signal.SIG_IGN)
