"""A stretch of reports with nothing else between them: one row."""

from __future__ import annotations

from collections.abc import Mapping

from runfold.events.base import Json
from runfold.events.counts import counted
from runfold.events.entry import Entry
from runfold.events.facts import Reported
from runfold.replay.rows import Row
from runfold.replay.words import metric_words, rank_words


class ReportStretch:
    """Counts reports; with `rank`, only those of that rank are told of."""

    def __init__(self, entry: Entry, attempt: int | None, rank: int | None) -> None:
        self.first = self.last = entry
        self.attempt = attempt
        self.rank = rank
        self.count = 0
        self.ranks: set[int] = set()
        self.low = self.high = 0
        self.metrics: dict[str, Json] | None = None

    def add(self, entry: Entry, report: Reported) -> None:
        """Take a report of an entry."""
        if self.rank is not None and report.rank != self.rank:
            return
        step = report.index if report.step is None else report.step
        if not self.count:
            self.first, self.low, self.high = entry, step, step
        elif step > self.high:
            self.high = step
        elif step < self.low:
            self.low = step
        self.last = entry
        self.count += 1
        self.ranks.add(report.rank)
        if report.metrics and report.rank in (0, self.rank):
            self.metrics = report.metrics

    def row(self) -> Row:
        """Return the row of all reports taken."""
        ranks, steps = tuple(sorted(self.ranks)), (self.low, self.high)
        return Row(
            n=self.first.n,
            last_n=self.last.n,
            t=self.first.t,
            until_t=self.last.t,
            at=self.first.at,
            gap_s=0.0,
            kind="reports",
            what=reports_words(self.count),
            reason=progress_words(ranks, steps, self.metrics),
            attempt=self.attempt,
            ranks=ranks,
            count=self.count,
            steps=steps,
            metrics=self.metrics,
        )


def reports_words(count: int) -> str:
    """Return how many reports, in words."""
    return counted(count, "report")


def progress_words(ranks: tuple[int, ...], steps: tuple[int, int], metrics: Mapping[str, Json] | None) -> str:
    """Return whose reports, of which steps, and the newest metrics."""
    low, high = steps
    which = f"step {low}" if low == high else f"steps {low}-{high}"
    newest = f"; {metric_words(dict(metrics))}" if metrics else ""
    return f"{rank_words(ranks)}, {which}{newest}"
