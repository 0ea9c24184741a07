"""Whether a process that has imported libraries may be forked: what they may have left in it that no fork survives.

A fork has one thread, shares descriptors with its siblings, and cannot use a GPU that its parent has opened. Whoever
finds one of these here starts ranks from a process without them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from runfold.workers.capture import Capture
from runfold.workers.imports import is_users, new_modules

_DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/accel")
"""What a process has open that has initialised CUDA, ROCm or another accelerator."""
_SELF: Final = Path("/proc/self")
_FILES_MADE: Final = frozenset({"tempfile.mkdtemp", "tempfile.mkstemp"})


class Before:
    """A process before its imports. `unfit` says afterwards why it must not be forked, None if it may be."""

    def __init__(self) -> None:
        self.modules = frozenset(sys.modules)
        self._fds = _descriptors()
        self._handlers = _handlers()
        self._made: set[str] = set()
        self._listening = True
        # There is no taking it away again: it is deaf afterwards.
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _arguments: tuple[object, ...]) -> None:
        if self._listening and event in _FILES_MADE:
            self._made.add(event)

    def unfit(self) -> str | None:
        """Return why no rank may be forked from this process."""
        self._listening = False
        new = new_modules(self.modules)
        own = next((name for name, module in new.items() if is_users(name, module)), None)
        if own is not None:
            return f"a library has imported {own}, which is no installed package"
        if (accelerator := accelerator_in_use()) is not None:
            return f"{accelerator} is initialised by importing, and no fork could use it"
        if self._made:
            return "a library makes temporary files when it is imported, which each rank would take away at its end"
        if _handlers() != self._handlers:
            return "a library sets a signal handler when it is imported"
        opened = {fd: target for fd, target in _descriptors().items() if self._fds.get(fd) != target}
        if opened:
            return f"a library keeps open {', '.join(sorted(opened.values()))}, which ranks would share"
        left = threads_left()
        return None if left == 0 else f"{left} thread{'s' * (left > 1)} started by importing would be missing in a fork"


def accelerator_in_use() -> str | None:
    """Return which accelerator this process has initialised, without importing anything; None for none."""
    torch = sys.modules.get("torch")
    initialised: object = None
    with Capture():
        initialised = torch.cuda.is_initialized() if torch is not None else False
    if initialised is True:
        return "CUDA"
    mapped = ""
    with contextlib.suppress(OSError):
        mapped = (_SELF / "maps").read_text()
    return device_in([*_descriptors().values(), *(line.partition("/")[2] for line in mapped.splitlines())])


def device_in(paths: Iterable[str]) -> str | None:
    """Return the accelerator's device that is among open or mapped files."""
    rooted = ("/" + path.lstrip("/") for path in paths)
    return next((path for path in rooted if path.startswith(_DEVICES)), None)


def threads_left() -> int:
    """Return how many threads besides this one stay when this process forks.

    Libraries that know of forks (OpenBLAS) end theirs before one and start them when they are next needed: so this
    forks once.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    try:
        return sum(1 for _ in (_SELF / "task").iterdir()) - 1
    except OSError:
        return threading.active_count() - 1


def forget_exit_functions() -> None:
    """Leave what libraries registered with `atexit` to the forks: this process is no program that ends."""
    # There is no public way.
    clear: Callable[[], None] | None = getattr(atexit, "_clear", None)
    if clear is not None:
        clear()


def _descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for fd in (_SELF / "fd").iterdir():
            with contextlib.suppress(OSError):  # the one by which they were listed
                found[fd.name] = str(fd.readlink())
    return found


def _handlers() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}
