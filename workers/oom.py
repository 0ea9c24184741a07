"""Whether the kernel has lately ended a process for want of memory, as far as control groups tell."""

from __future__ import annotations

from pathlib import Path
from typing import Final

OWN: Final = Path("/proc/self/cgroup")
MOUNT: Final = Path("/sys/fs/cgroup")


def oom_kills(own: Path = OWN, mount: Path = MOUNT) -> int:
    """Return how many processes of this process's control groups were so ended; 0 where nobody counts.

    In a container the group that it is in may be mounted as the root: both places are looked at, so that only the
    difference of two answers means anything.
    """
    return sum(_kills(path) for path in dict.fromkeys(_counters(own, mount)))


def _counters(own: Path, mount: Path) -> list[Path]:
    """Return the files that may count: of the second version of control groups, then of the first."""
    found = [mount / "memory.events", mount / "memory" / "memory.oom_control"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inside = group.strip("/")
        if not controllers:
            found += [mount / inside / "memory.events", mount / "unified" / inside / "memory.events"]
        elif "memory" in controllers.split(","):
            found.append(mount / "memory" / inside / "memory.oom_control")
    return found


def _kills(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    count = counts.get("oom_kill", "0")
    return int(count) if count.isdigit() else 0
