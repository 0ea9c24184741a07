"""What the kernel offers to keep processes in hand: parent-death signals, subreapers, exit records, start times.

Written for Linux; elsewhere a fork server's children are ended by the fork server alone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from typing import Final

import msgspec
import psutil

from runfold.workers.capture import Capture

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_RSS_UNIT_BYTES: Final = 1024
EXIT_PARENT_GONE: Final = 75
EXIT_BUG: Final = 70


class Exit(msgspec.Struct, frozen=True, kw_only=True, tag="exited"):
    """How a process ended: exit code or signal, or neither when nobody could see it; what it used."""

    pid: int
    code: int | None = None
    signal: int | None = None
    peak_memory_bytes: int | None = None
    cpu_user_s: float = 0.0
    cpu_system_s: float = 0.0

    @property
    def known(self) -> bool:
        """Whether somebody saw it end."""
        return self.code is not None or self.signal is not None

    def describe(self) -> str:
        """Return how it ended, in words."""
        if self.signal is not None:
            return f"ended by signal {self.signal} ({signal_name(self.signal)})"
        return "ended unseen" if self.code is None else f"exited with code {self.code}"


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _prctl(option: int, argument: int | bytes) -> None:
    # The C library is looked up at each call: these are once-a-process settings.
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(number: signal.Signals, parent_pid: int) -> None:
    """Have the kernel send this signal when the parent dies; end at once if it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent_pid:
        os._exit(EXIT_PARENT_GONE)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set what `ps -o comm` and `top` show; 15 bytes are kept."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def start_time(pid: int) -> float | None:
    """Return when a process started, None if there is none: with its id, who it is for ever.

    In seconds since boot, so that a clock that jumps changes nothing.
    """
    try:
        return int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return None


def kernel_state(pid: int) -> str:
    """Return a process's state as Linux tells it, in one letter (`R`, `S`, `T`, `Z`, …); nothing when it is gone."""
    try:
        return _stat(pid)[0].decode()
    except (OSError, IndexError):
        return ""


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or has ended and was not reaped yet."""
    return kernel_state(pid) in ("", "Z", "X")


def _stat(pid: int) -> list[bytes]:
    """Return what the kernel says of a process behind its name, which may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # a pseudo file, read on a hot path
        return file.read().rpartition(b")")[2].split()


def next_dead() -> int | None:
    """Return the id of a child that is dead and not reaped yet; its id and group stay taken until it is."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def reap(pid: int) -> Exit:
    """Take a dead child's exit record."""
    _, status, usage = os.wait4(pid, 0)
    return Exit(
        pid=pid,
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        peak_memory_bytes=usage.ru_maxrss * _RSS_UNIT_BYTES,
        cpu_user_s=usage.ru_utime,
        cpu_system_s=usage.ru_stime,
    )


def send_signal(pid: int, number: int, *, group: bool) -> bool:
    """Signal a process or its group; False when there is none any more."""
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def wake_children(pid: int) -> None:
    """Let the children of a process go on that somebody has stopped: a stopped one would outlive its parent's death."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            send_signal(child.pid, signal.SIGCONT, group=False)


def close_other_fds(keep: Collection[int]) -> None:
    """Close all descriptors above stderr but these."""
    start = 3
    for fd in sorted(keep):
        if fd >= start:
            os.closerange(start, fd)
            start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _join_threads() -> None:
    # What the interpreter itself, and multiprocessing in its forks, call at the end: it also tells idle
    # thread pools to stop, which joining their threads one by one would wait for in vain.
    shutdown: Callable[[], None] | None = getattr(threading, "_shutdown", None)
    if shutdown is not None:
        shutdown()


def flush_output() -> None:
    """Write out what stdout and stderr still hold, whatever user code has put in their place."""
    for stream in (sys.stdout, sys.stderr):
        with Capture():
            stream.flush()


def tell(text: str) -> None:
    """Write a line to stderr; to its descriptor when user code has closed, replaced or taken away the stream."""
    with Capture() as writing:
        sys.stderr.write(text + "\n")
    if writing.error is not None:
        with contextlib.suppress(OSError):
            os.write(2, (text + "\n").encode("utf-8", "backslashreplace"))


def finish_like_interpreter() -> None:
    """Do what ends an ordinary Python program: wait for non-daemon threads, run `atexit`, flush."""
    _join_threads()
    # A fork ends by os._exit, which skips them.
    run_exit_functions: Callable[[], None] | None = getattr(atexit, "_run_exitfuncs", None)
    if run_exit_functions is not None:
        run_exit_functions()
    flush_output()
