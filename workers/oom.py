"""Whether the kernel has lately ended a process for want of memory, as far as the control group tells."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_COUNTERS: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))


def oom_kills() -> int:
    """Return how many processes of this control group were so ended; 0 where nobody counts."""
    for path in _COUNTERS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
        return int(counts.get("oom_kill", "0"))
    return 0
