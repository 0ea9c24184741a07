"""A run's log in Python: entries, transitions and reports as pandas frames, and every question replay can answer."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from runfold.blocking import run_blocking
from runfold.locate import find
from runfold.replay.at import state_at
from runfold.replay.audit import audit
from runfold.replay.diff import diff_moments, diff_runs
from runfold.replay.goodput import goodput
from runfold.replay.render import render_story, render_timeline
from runfold.replay.screen import on_screen
from runfold.replay.story import story
from runfold.replay.tables import TABLES, as_text, kind_of_column
from runfold.replay.timeline import timeline
from runfold.replay.verify import verify
from runfold.replay.whatif import what_if
from runfold.sources import open_history

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    import pandas as pd

    from runfold.events.base import Json
    from runfold.events.state import RunState
    from runfold.replay.audit import AuditReport
    from runfold.replay.diff import MomentDiff, RunDiff
    from runfold.replay.goodput import Goodput
    from runfold.replay.history import History
    from runfold.replay.rows import Timeline
    from runfold.replay.story import Story
    from runfold.replay.tables import TableName
    from runfold.replay.verify import VerifyReport
    from runfold.replay.whatif import WhatIf


def load(
    run_or_url: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    server: str | None = None,
    context: str | None = None,
) -> RunLog:
    """Return a run's log: of a run id, an archive's directory or URL, or an exported file.

    A run id is looked for on the service and in the archive of the data directory, which `data`, `server` and `context`
    name as the command line's options do. What is damaged is left out; `audit()` tells of it.

    Raises:
        runfold.replay.errors.NotFound: nothing of that name.
        runfold.replay.errors.CannotRead: it is there, and cannot be read.
        runfold.errors.UnreachableError: the service that was named does not answer.
    """
    return RunLog(run_blocking(open_history(find(data, server, context), str(run_or_url))))


class RunLog:
    """A run's log as it was when it was read. Printing it tells the story."""

    def __init__(self, history: History) -> None:
        self.history = history

    @property
    def run(self) -> str:
        """The run's id."""
        return self.history.run

    # --- tables

    @cached_property
    def entries(self) -> pd.DataFrame:
        """One row an entry: number, time, who wrote it, how much it holds."""
        return self._frame("entries")

    @cached_property
    def transitions(self) -> pd.DataFrame:
        """One row a transition: what was decided, why, and what brought it about."""
        return self._frame("transitions")

    @cached_property
    def reports(self) -> pd.DataFrame:
        """One row a report: rank, attempt, index, step, time, and a column a metric."""
        return self._frame("reports")

    def _frame(self, name: TableName) -> pd.DataFrame:
        import pandas as pd

        dtypes = {"text": "string", "time": "float64", "number": "float64", "count": "Int64", "flag": "boolean"}
        columns: dict[str, pd.Series] = {}
        for column, cells in TABLES[name](self.history).columns.items():
            kind = kind_of_column(name, column, cells)
            texts = [as_text(cell) for cell in cells] if kind == "text" else cells
            columns[column] = pd.Series(texts, dtype=dtypes[kind], name=column)
        return pd.DataFrame(columns)

    # --- questions

    def story(self) -> Story:
        """Return what came of the run, what failed first, what was decided, what is left of each budget."""
        return story(self.history)

    def timeline(self, *, attempt: int | None = None, rank: int | None = None) -> Timeline:
        """Return what happened and what was decided on it, row by row."""
        return timeline(self.history, attempt=attempt, rank=rank)

    def at(self, when: int | str) -> RunState:
        """Return the state after an entry, or at a moment as `runfold replay --at` takes it."""
        return state_at(self.history, when).state

    def goodput(self, since: str | None = None, until: str | None = None) -> Goodput:
        """Return what the time went into."""
        return goodput(self.history, since, until)

    def audit(self) -> AuditReport:
        """Return what the log breaks of the rules."""
        return audit(self.history)

    def verify(self) -> VerifyReport:
        """Decide the log's inputs again, and compare."""
        return verify(self.history)

    def what_if(self, settings: Mapping[str, Json]) -> WhatIf:
        """Return where the run would have taken another course: `what_if({"failure.max_failures": 5})`."""
        return what_if(self.history, settings)

    def diff(self, a: int | str, b: int | str) -> MomentDiff:
        """Return what changed between two moments."""
        return diff_moments(self.history, str(a), str(b))

    def diff_to(self, other: RunLog) -> RunDiff:
        """Return how another run differs, and where the two part."""
        return diff_runs(self.history, other.history)

    def __str__(self) -> str:
        lines = [*render_story(self.story()), "", *render_timeline(on_screen(self.timeline()))]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<RunLog {self.run}: {len(self.history.links)} entries>"
