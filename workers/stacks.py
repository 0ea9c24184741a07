"""The runner's side of looking at a rank: what its process does, seen from outside, and the stacks that it writes.

Four ways of making no step are told apart: a process that is stopped; one whose main thread runs Python code (it
answers) and is busy or waits; one in native code (it does not), busy or waiting. The last two hold the interpreter's
lock, or wait for who does; their stacks are written all the same, by a signal handler that needs no lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from runfold.events.stacks import Doing
from runfold.workers.processes import kernel_state
from runfold.workers.stackdump import ANSWER

LOOK_MAX_S: Final = 2.0
"""How long is waited for the main thread's answer before it is taken to be in native code."""
SAMPLE_EVERY_S: Final = 0.05
SAMPLES_MIN_COUNT: Final = 8
STACKS_MAX_BYTES: Final = 1024 * 1024
_STOPPED: Final = ("T", "t")
_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE)
_OURS: Final = str(Path(__file__).parent)


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a rank's process: `text` is what it wrote; `trouble` why that is nothing."""

    doing: Doing
    text: str = ""
    trouble: str | None = None


class StacksFile:
    """Where a rank writes its stacks. It belongs to nobody else, and is gone with its last descriptor."""

    def __init__(self) -> None:
        self.fd = _anonymous_file()

    def clear(self) -> None:
        """Forget what was written."""
        os.ftruncate(self.fd, 0)

    def read(self) -> bytes:
        """Return what was written."""
        return os.pread(self.fd, STACKS_MAX_BYTES, 0)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)


def _anonymous_file() -> int:
    """Return a file of which nobody else knows; the rank writes at its end, wherever that is by then."""
    with tempfile.TemporaryFile() as file:
        fd = os.dup(file.fileno())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


async def look(pid: int, ask: Callable[[], Awaitable[bool]], file: StacksFile) -> Look:
    """Look at a process; `ask` sends it the signal, and says whether it was there to get it."""
    if kernel_state(pid) in _STOPPED:
        return Look(doing="stopped", trouble="it is stopped by a signal, and writes its stacks once it goes on")
    file.clear()
    if not await ask():
        return Look(doing="gone", trouble="its process has ended")
    busy_count = samples_count = 0
    deadline = asyncio.get_running_loop().time() + LOOK_MAX_S
    written = b""
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(SAMPLE_EVERY_S)
        samples_count += 1
        busy_count += _is_running(pid)
        written = file.read()
        if ANSWER in written and samples_count >= SAMPLES_MIN_COUNT:
            break
    if not written:
        stopped = kernel_state(pid) in _STOPPED
        return Look(doing="stopped" if stopped else "blocked", trouble=f"it wrote no stacks within {LOOK_MAX_S:g} s")
    busy, answered = 2 * busy_count > samples_count, ANSWER in written
    doing: Doing = ("busy" if busy else "idle") if answered else ("native" if busy else "blocked")
    return Look(doing=doing, text=written.replace(ANSWER, b"").decode(errors="replace"))


def _is_running(pid: int) -> bool:
    """Whether a thread of a process is at work, or would be if it had a processor."""
    try:
        threads = [thread.name for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return any(kernel_state(int(thread)) == "R" for thread in threads)


def crashed_at(output: str, working_dir: str | None) -> str | None:
    """Return where the user's code was when the process crashed: Python writes its stacks at the end of the output."""
    _, crash, stacks = output.rpartition("Fatal Python error: ")
    return where(stacks, working_dir) if crash else None


def where(text: str, working_dir: str | None) -> str | None:
    """Return the innermost frame of the user's code in the main thread, `file:line in function`."""
    # The thread that got the signal, which is the main one unless that blocks it; else the last, which is the oldest.
    sections = list(_THREAD.finditer(text))
    if not sections:
        return None
    begin = next((one for one in sections if one.group().startswith("Current")), sections[-1])
    end = next((one.start() for one in sections if one.start() > begin.start()), len(text))
    frames = list(_FRAME.finditer(text, begin.end(), end))
    if not frames:
        return None
    frame = next((one for one in frames if not one["file"].startswith(_OURS)), frames[0])
    file = frame["file"]
    if working_dir is not None and file.startswith(f"{working_dir}/"):
        file = file.removeprefix(f"{working_dir}/")
    return f"{file}:{frame['line']} in {frame['function']}"
