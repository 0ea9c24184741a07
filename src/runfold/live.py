"""Progress on a terminal: decisions scroll by, below them stands what is now: state, ranks, metrics, rate."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runfold.events.counts import counted
from runfold.events.edges import state_name
from runfold.events.facts import Reported
from runfold.explain import metrics_text
from runfold.progress import decided_lines, last_reason
from runfold.replay.escape import safe

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import RenderableType

    from runfold.events.beats import RankBeat, RunnerBeat
    from runfold.events.state import Rank, RunState
    from runfold.follow import Told

REFRESHES_PER_S_MAX: Final = 8
RANKS_SHOWN_MAX: Final = 16
RATE_WINDOW_S: Final = 10.0
RATE_SAMPLES_MAX: Final = 4096
"""How many entries with reports of the window are remembered."""

MIB: Final = 1024 * 1024

_STYLES: Final = {
    "running": "green",
    "finished": "bold green",
    "retry": "yellow",
    "restarting": "yellow",
    "raise": "bold red",
    "errored": "bold red",
    "aborted": "bold magenta",
}


class LiveProgress:
    """A live display, used as a context manager."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._state: RunState | None = None
        self._reason = ""
        self._beats: dict[int, RankBeat] = {}
        self._reported: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES_MAX)
        self._heard_at_s = time.monotonic()
        # Last: it renders at once.
        self._live = Live(console=self._console, refresh_per_second=REFRESHES_PER_S_MAX, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def entry(self, told: Told) -> None:
        """Let what was decided scroll by, and remember the state."""
        entry, state = told.entry, told.state
        if self._state is None or state.attempt != self._state.attempt:
            self._beats.clear()
        self._state = state
        now = self._heard_at_s = time.monotonic()
        if reports := sum(isinstance(item, Reported) for item in entry.inputs):
            self._reported.append((now, reports))
        lines = list(decided_lines(entry, self._reason))
        self._reason = last_reason(entry, self._reason)
        if lines:
            self._live.refresh()  # what stands below must not be older than what scrolls by
        for line in lines:
            self._console.print(Text(str(line), style=_STYLES.get(line.about, "")))

    def printed(self, line: str) -> None:
        """Let a line that a rank has printed scroll by."""
        self._console.print(Text(line, style="dim"))

    def beat(self, beat: RunnerBeat) -> None:
        """Remember what ranks use now."""
        if self._state is not None and beat.attempt == self._state.attempt:
            self._beats.update((rank.rank, rank) for rank in beat.ranks)

    def _render(self) -> RenderableType:
        state = self._state
        if state is None:
            return Text("waiting for a controller to take the job …", style="dim")
        if state.terminal:
            return Text("")
        parts: list[RenderableType] = [self._headline(state)]
        if state.group is not None and state.group.ranks:
            parts.append(self._table(state.group.ranks))
        if state.metrics:
            parts.append(Text(f"  {safe(metrics_text(state.metrics))}", style="cyan"))
        return Group(*parts)

    def _headline(self, state: RunState) -> Text:
        elapsed_s = state.t + time.monotonic() - self._heard_at_s
        name = state_name(state.phase)
        text = f"{state.run}  {name}  attempt {state.attempt}  {elapsed_s:.0f} s  {counted(state.reports, 'report')}"
        return Text(f"{text}{self._rate_text()}", style="bold")

    def _rate_text(self) -> str:
        since = time.monotonic() - RATE_WINDOW_S
        while self._reported and self._reported[0][0] < since:
            self._reported.popleft()
        rate = sum(reports for _, reports in self._reported) / RATE_WINDOW_S
        over = "over " if len(self._reported) == RATE_SAMPLES_MAX else ""
        return f", {over}{rate:.1f} a second" if rate else ""

    def _table(self, ranks: tuple[Rank, ...]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("  rank", "node", "phase", "report", "step", "memory", "cpu"):
            table.add_column(title, justify="left" if title in ("node", "phase") else "right")
        for rank in ranks[:RANKS_SHOWN_MAX]:
            table.add_row(*self._cells(rank))
        if len(ranks) > RANKS_SHOWN_MAX:
            table.add_row("…", f"{len(ranks) - RANKS_SHOWN_MAX} more")
        return table

    def _cells(self, rank: Rank) -> list[str]:
        beat = self._beats.get(rank.rank)
        index = max(rank.index, beat.index) if beat is not None else rank.index
        step = beat.step if beat is not None and beat.step is not None else rank.step
        memory = f"{beat.memory_bytes / MIB:.0f} MiB" if beat is not None and beat.memory_bytes is not None else ""
        cpu = f"{beat.cpu:.0%}" if beat is not None and beat.cpu is not None else ""
        reported = str(index) if index >= 0 else ""
        return [str(rank.rank), rank.node, rank.phase, reported, "" if step is None else str(step), memory, cpu]
