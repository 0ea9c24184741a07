"""What a process uses, for beats."""

from __future__ import annotations

import psutil


class Usage:
    """Memory and processor time of processes, looked at now and then."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}

    def of(self, pid: int, now: float) -> tuple[int | None, float | None]:
        """Return a process's memory in bytes, and the processors it kept busy since it was last asked."""
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
            memory_bytes = int(process.memory_info().rss)
        except psutil.Error:
            self._seen.pop(pid, None)
            return None, None
        used_s = times.user + times.system
        before = self._seen.get(pid)
        self._seen[pid] = (now, used_s)
        if before is None or now <= before[0]:
            return memory_bytes, None
        return memory_bytes, round(max(0.0, used_s - before[1]) / (now - before[0]), 3)

    def forget(self, keep: set[int]) -> None:
        """Forget all processes but these."""
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in keep}
