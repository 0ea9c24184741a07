"""What ranks print to standard output, shown beside a run's progress: as many lines as somebody can read."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events.counts import counted
from runfold.events.nats.output import follow_output
from runfold.events.output import OutputBatch
from runfold.replay.escape import safe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from runfold.client import Client

LINES_BURST_MAX: Final = 100
"""So many lines may come at once; then ten a second, and it is said how many were left out."""
LINE_EVERY_S: Final = 0.1
LINE_CHARS_MAX: Final = 500
DRAIN_TIMEOUT_S: Final = 5.0


class Printed:
    """Shows lines of output as they come; what ranks write to standard error stands in `runfold logs`: `logs`."""

    def __init__(self, logs: str, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._show = show
        self._clock = clock
        self._allowed = float(LINES_BURST_MAX)
        self._allowed_at_s = clock()
        self._left_out = 0

    def take(self, data: bytes) -> None:
        """Show the lines of a batch."""
        try:
            batch = msgspec.json.decode(data, type=OutputBatch)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        for line in batch.lines:
            if line.source == "stdout":
                self._line(batch.rank, line.text)

    def close(self) -> None:
        """Say how many lines at the end were left out."""
        if self._left_out:
            self._show(f"{'':13}{'':13} … {counted(self._left_out, 'line')} not shown: {self._logs}")
            self._left_out = 0

    def cut(self) -> None:
        """Say that what was printed last may not be shown."""
        self._show(f"{'':13}{'':13} … the last lines may not be shown: {self._logs}")

    def _line(self, rank: int, text: str) -> None:
        now = self._clock()
        earned = (now - self._allowed_at_s) / LINE_EVERY_S
        self._allowed, self._allowed_at_s = min(self._allowed + earned, float(LINES_BURST_MAX)), now
        if self._allowed < 1:
            self._left_out += 1
            return
        self._allowed -= 1
        self.close()
        self._show(output_line(rank, text))


def output_line(rank: int, text: str) -> str:
    """Return a line of a rank's output as it stands among lines of progress."""
    shown = text if len(text) <= LINE_CHARS_MAX else f"{text[:LINE_CHARS_MAX]}…"
    return f"{'':13}{f'[rank {rank}]':<13} {safe(shown)}"


@asynccontextmanager
async def output_shown(client: Client, run: str, logs: str, show: Callable[[str], None] | None) -> AsyncIterator[None]:
    """Show what a run's ranks print for as long as the block lasts, and what is kept of it at its end."""
    if show is None:
        yield
        return
    printed = Printed(logs, show)
    follower = follow_output(client.connection, run, lambda batch: printed.take(batch.data))
    try:
        yield
        if not await follower.wait_caught_up(DRAIN_TIMEOUT_S):
            printed.cut()
    finally:
        await follower.close()
        printed.close()
