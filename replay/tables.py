"""A log as tables: one row an entry, one a transition, one a report, in columns that keep their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec

from runfold.events.base import Json
from runfold.events.entry import Entry
from runfold.events.facts import Reported
from runfold.events.transitions import AnyTransition
from runfold.events.values import unpack
from runfold.replay.clocks import Clocks
from runfold.replay.history import History, Link
from runfold.replay.words import kind_of, transition_words

TableName = Literal["entries", "transitions", "reports"]
Cell = None | bool | int | float | str
Column = list[Cell]

ENTRIES: Final = (
    *("run", "n", "t", "at", "by", "epoch", "inputs", "reports", "transitions", "bytes", "hash"),
    *("inbox", "inbox_sequence"),
)
TRANSITIONS: Final = (
    *("run", "n", "k", "t", "at", "kind", "what", "reason", "from_state", "to_state", "attempt", "decision"),
    *("budget", "spent", "limit", "rank", "node", "error_kind", "error_type", "error_message", "error_where"),
    *("checkpoint", "epoch", "cause_n", "cause_kind"),
)
REPORTS: Final = ("run", "n", "t", "when_t", "attempt", "rank", "life", "index", "step", "source", "checkpoint")

METRIC_PREFIX: Final = "metric."
"""Before the name of a metric that is called like a column."""

TEXTS: Final = frozenset(
    {
        *("run", "at", "by", "hash", "inbox", "kind", "what", "reason", "from_state", "to_state", "decision", "budget"),
        *("node", "error_kind", "error_type", "error_message", "error_where", "checkpoint", "cause_kind", "source"),
    }
)
TIMES: Final = frozenset({"t", "when_t"})


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Columns by name, all of one length. Cells are None where a row has nothing to say."""

    name: TableName
    columns: dict[str, Column]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())))


def entries_table(history: History) -> Table:
    """Return one row an entry."""
    columns: dict[str, Column] = {name: [] for name in ENTRIES}
    for link in history.links:
        _add(columns, ENTRIES, _entry(link))
    return Table(name="entries", columns=columns)


def _entry(link: Link) -> dict[str, Cell]:
    entry = link.entry
    return {
        "run": entry.run,
        "n": entry.n,
        "t": entry.t,
        "at": entry.at,
        "by": entry.by,
        "epoch": entry.epoch,
        "inputs": len(entry.inputs),
        "reports": sum(1 for item in entry.inputs if type(item) is Reported),
        "transitions": len(entry.transitions),
        "bytes": len(link.data),
        "hash": link.hash,
        "inbox": entry.cursor[0] if entry.cursor else None,
        "inbox_sequence": entry.cursor[1] if entry.cursor else None,
    }


def transitions_table(history: History) -> Table:
    """Return one row a transition."""
    columns: dict[str, Column] = {name: [] for name in TRANSITIONS}
    for link in history.links:
        for k, item in enumerate(link.entry.transitions):
            _add(columns, TRANSITIONS, _transition(history, link.entry, k, item))
    return Table(name="transitions", columns=columns)


def _transition(history: History, entry: Entry, k: int, item: AnyTransition) -> dict[str, Cell]:
    row: dict[str, Cell] = {
        "run": entry.run,
        "n": entry.n,
        "k": k,
        "t": entry.t,
        "at": entry.at,
        "kind": kind_of(item),
        "what": transition_words(item),
        "reason": item.reason,
        "checkpoint": getattr(item, "name", None) if kind_of(item) == "checkpoint_committed" else None,
    }
    for name in ("from_state", "to_state", "attempt", "decision", "budget", "epoch", "node"):
        row[name] = getattr(item, name, None)
    if row["budget"] is not None:
        row["spent"], row["limit"] = getattr(item, "spent", None), getattr(item, "limit", None)
    failure = getattr(item, "failure", None)
    if failure is not None:
        row |= {"attempt": failure.attempt, "rank": failure.rank, "node": failure.node}
        error = failure.error
        row |= {"error_kind": failure.kind, "error_type": error.type, "error_message": error.message}
        row["error_where"] = error.where
    return row | _cause(history, entry, item)


def _cause(history: History, entry: Entry, item: AnyTransition) -> dict[str, Cell]:
    cause = item.cause
    n = entry.n if cause.entry is None else cause.entry
    if not 0 <= n < len(history.links):
        return {}
    there = history.links[n].entry
    items = there.transitions if cause.input is None else there.inputs
    place = cause.transition if cause.input is None else cause.input
    kind = kind_of(items[place]) if place is not None and 0 <= place < len(items) else None
    return {"cause_n": n, "cause_kind": kind}


def reports_table(history: History) -> Table:
    """Return one row a report, a column a metric; nested metrics are called `outer/inner`.

    A rank of which only index and step are recorded has no metrics.
    """
    columns: dict[str, Column] = {name: [] for name in REPORTS}
    clocks, count = Clocks(), 0
    for link in history.links:
        for item in link.entry.inputs:
            if isinstance(item, Reported):
                count += 1
                _add(columns, REPORTS, _report(link.entry, item, clocks))
                for name, cell in flat_metrics(item.metrics or {}):
                    column = columns.setdefault(METRIC_PREFIX + name if name in REPORTS else name, [])
                    column.extend([None] * (count - 1 - len(column)))
                    column.append(cell)
            elif item.__struct_config__.tag == "runner_ready":
                clocks.hear(link.entry, item)  # type: ignore[arg-type]  # the tag says what it is
    for column in columns.values():
        column.extend([None] * (count - len(column)))
    return Table(name="reports", columns=columns)


def _report(entry: Entry, item: Reported, clocks: Clocks) -> dict[str, Cell]:
    return {
        "run": entry.run,
        "n": entry.n,
        "t": entry.t,
        "when_t": round(clocks.when(entry, item), 6),
        "attempt": item.attempt,
        "rank": item.rank,
        "life": item.life,
        "index": item.index,
        "step": item.step,
        "source": item.source,
        "checkpoint": item.checkpoint,
    }


def flat_metrics(metrics: dict[str, Json], prefix: str = "") -> Iterator[tuple[str, Cell]]:
    """Yield packed metrics by their names, nested ones as `outer/inner`, lists as JSON."""
    for name, packed in metrics.items():
        value = unpack(packed)
        if isinstance(value, dict):
            yield from flat_metrics(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            yield f"{prefix}{name}", msgspec.json.encode(value).decode()
        else:
            yield f"{prefix}{name}", value


def _add(columns: dict[str, Column], names: tuple[str, ...], row: dict[str, Cell]) -> None:
    for name in names:
        columns[name].append(row.get(name))


TABLES: Final[dict[TableName, Callable[[History], Table]]] = {
    "entries": entries_table,
    "transitions": transitions_table,
    "reports": reports_table,
}
"""Name → how the table is made."""


_NAMES: Final[dict[TableName, tuple[str, ...]]] = {
    "entries": ENTRIES,
    "transitions": TRANSITIONS,
    "reports": REPORTS,
}


def kind_of_column(table: TableName, name: str, column: Column) -> Literal["text", "time", "count", "number", "flag"]:
    """Return what a column holds, so that it has one type wherever it goes; metrics of mixed kinds are text."""
    if name in _NAMES[table]:
        return "text" if name in TEXTS else "time" if name in TIMES else "count"
    found = {type(cell) for cell in column if cell is not None}
    if found == {bool}:
        return "flag"
    if found == {int}:
        fits = all(-(2**63) <= int(cell) < 2**63 for cell in column if cell is not None)
        return "count" if fits else "text"
    return "number" if found and found <= {int, float} else "text"


def as_text(cell: Cell) -> str | None:
    """Return a cell of a column of texts."""
    return cell if cell is None or isinstance(cell, str) else msgspec.json.encode(cell).decode()
