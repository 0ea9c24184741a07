"""A log as tables: one row an entry, a transition, a report; as CSV and Parquet."""

from __future__ import annotations

import csv
import io
import math
import sys

import msgspec
import pytest

from runfold.events.base import Json
from runfold.replay.errors import CannotRead
from runfold.replay.formats import csv_lines, parquet_bytes
from runfold.replay.history import History
from runfold.replay.tables import REPORTS, TABLES, TRANSITIONS, Table, kind_of_column
from support.histories import failing_run, finished_run, history
from support.runs import Run


def read_csv(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(b"".join(csv_lines(table)).decode())))


def reporting(*metrics: dict[str, Json]) -> History:
    """A run whose rank 0 reports these, packed."""
    run = Run(2).running()
    for index, one in enumerate(metrics):
        run.says(msgspec.structs.replace(run.reported(0, index), metrics=one), run.reported(1, index))
    return history(run.bytes)


def test_there_is_a_row_an_entry_a_transition_and_a_report() -> None:
    run = history(failing_run())
    rows = {name: make(run).rows for name, make in TABLES.items()}
    transitions = sum(len(entry.transitions) for entry in run.entries)
    assert rows == {"entries": len(run.links), "transitions": transitions, "reports": 24}


def test_an_entry_tells_what_it_holds_and_its_hash() -> None:
    run = history(finished_run())
    columns = TABLES["entries"](run).columns
    assert columns["hash"] == [link.hash for link in run.links]
    assert (columns["inputs"][0], columns["transitions"][0], columns["by"][0]) == (2, 4, "ctl-a1")
    assert sum(int(str(cell)) for cell in columns["reports"]) == 12


def test_a_transition_tells_why_and_what_brought_it_about() -> None:
    rows = read_csv(TABLES["transitions"](history(failing_run())))
    (decided,) = [row for row in rows if row["kind"] == "failure_decided"]
    assert (decided["n"], decided["decision"], decided["budget"], decided["spent"]) == ("11", "retry", "worker", "1")
    assert (decided["rank"], decided["node"], decided["error_type"]) == ("1", "local", "RuntimeError")
    assert (decided["cause_n"], decided["cause_kind"]) == ("11", "rank_failed")
    assert [row["to_state"] for row in rows if row["kind"] == "state_changed"][-1] == "finished"
    assert all(set(row) == set(TRANSITIONS) for row in rows)


def test_metrics_are_columns_and_nested_ones_have_paths() -> None:
    run = reporting(
        {"loss": 1.0, "val": {"accuracy": 0.5}, "node": 4}, {"loss": {"float": "nan"}, "best": True, "n": 3}
    )
    table = TABLES["reports"](run)
    assert table.columns["val/accuracy"] == [0.5, None, None, None]
    assert table.columns["best"] == [None, None, True, None]
    assert table.columns["node"] == [4, None, None, None]
    assert kind_of_column("reports", "node", table.columns["node"]) == "count"
    assert table.columns["metric.n"] == [None, None, 3, None]
    assert math.isnan(float(str(table.columns["loss"][2])))
    assert {len(column) for column in table.columns.values()} == {4}


def test_columns_have_one_type_and_mixed_ones_are_text() -> None:
    run = reporting(
        {"a": 1, "b": 1, "c": True, "d": [1, 2], "e": 1, "f": {"int": "9" * 30}},
        {"a": 2, "b": 1.5, "c": False, "e": "x"},
    )
    columns = TABLES["reports"](run).columns
    kinds = {name: kind_of_column("reports", name, columns[name]) for name in "abcdef"}
    assert kinds == {"a": "count", "b": "number", "c": "flag", "d": "text", "e": "text", "f": "text"}
    assert kind_of_column("reports", "t", columns["t"]) == "time"


def test_csv_has_a_header_also_without_rows() -> None:
    assert b"".join(csv_lines(TABLES["reports"](history([])))).decode().strip() == ",".join(REPORTS)


def test_parquet_reads_back_with_types_and_missing_cells() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    run = reporting({"loss": 1.0, "tag": "x"}, {"loss": {"float": "inf"}})
    for name, make in TABLES.items():
        table = parquet.read_table(arrow.BufferReader(parquet_bytes(make(run))))
        assert table.num_rows == make(run).rows, name
    reports = parquet.read_table(arrow.BufferReader(parquet_bytes(TABLES["reports"](run)))).to_pydict()
    assert reports["loss"] == [1.0, None, math.inf, None]
    assert reports["tag"] == ["x", None, None, None]
    assert reports["rank"] == [0, 1, 0, 1]


def test_parquet_without_its_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CannotRead, match=r"runfold\[parquet\]"):
        parquet_bytes(TABLES["entries"](history(finished_run())))
