"""A control group with less memory than a process wants: the kernel ends it, as it does on a full machine."""

from __future__ import annotations

import contextlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.waiting import until_seen

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = Path("/sys/fs/cgroup/memory")
SECOND = Path("/sys/fs/cgroup")


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path]:
    """Make a control group of so much memory; the test is skipped where that is not allowed. It is empty soon after."""
    first = (FIRST / "cgroup.procs").exists()
    group = (FIRST if first else SECOND) / f"runfold-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit_bytes), encoding="ascii")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    try:
        yield group
    finally:
        # What is told to end with the command may do so a moment after it.
        until_seen(lambda: not (group / "cgroup.procs").read_text(encoding="ascii").strip())
        group.rmdir()


def within(group: Path, *words: str) -> list[str]:
    """Return a command that runs another one in a control group."""
    return ["sh", "-c", 'echo $$ > "$0"/cgroup.procs; exec "$@"', str(group), *words]
