"""Writing tables: CSV, and Parquet with the extra `parquet`."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterator
from typing import Final, Protocol, cast

from runfold.replay.errors import CannotRead
from runfold.replay.tables import Cell, Column, Table, as_text, kind_of_column

ROWS_AT_ONCE_COUNT: Final = 10_000


def csv_lines(table: Table) -> Iterator[bytes]:
    """Yield a table as CSV, in pieces: a header, then a line a row; what is not there is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    for k, row in enumerate(zip(*table.columns.values(), strict=True)):
        writer.writerow(map(_csv_cell, row))
        if k % ROWS_AT_ONCE_COUNT == 0:
            yield _taken(out)
    yield _taken(out)


def _csv_cell(cell: Cell) -> Cell:
    return str(cell).lower() if isinstance(cell, bool) else cell


def _taken(out: io.StringIO) -> bytes:
    text = out.getvalue()
    out.seek(0)
    out.truncate()
    return text.encode()


class _Arrow(Protocol):
    """The part of pyarrow that is used; it has no types of its own."""

    def array(self, values: Column, kind: object, /) -> object: ...
    def table(self, columns: dict[str, object]) -> object: ...
    def string(self) -> object: ...
    def int64(self) -> object: ...
    def float64(self) -> object: ...
    def bool_(self) -> object: ...
    def BufferOutputStream(self) -> _Buffer: ...  # noqa: N802  # the library's own name


class _Buffer(Protocol):
    def getvalue(self) -> _Bytes: ...


class _Bytes(Protocol):
    def to_pybytes(self) -> bytes: ...


class _Parquet(Protocol):
    def write_table(self, table: object, where: object, compression: str) -> None: ...


def parquet_bytes(table: Table) -> bytes:
    """Return a table as a Parquet file; raise `CannotRead` when the extra `parquet` is not installed."""
    try:
        arrow = cast("_Arrow", importlib.import_module("pyarrow"))
        parquet = cast("_Parquet", importlib.import_module("pyarrow.parquet"))
    except ImportError as error:
        raise CannotRead("Parquet needs the extra `parquet`: pip install 'runfold[parquet]'") from error
    types = {
        "text": arrow.string(),
        "time": arrow.float64(),
        "number": arrow.float64(),
        "count": arrow.int64(),
        "flag": arrow.bool_(),
    }
    columns: dict[str, object] = {}
    for name, column in table.columns.items():
        kind = kind_of_column(table.name, name, column)
        cells: Column = [as_text(cell) for cell in column] if kind == "text" else column
        columns[name] = arrow.array(cells, types[kind])
    buffer = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns), buffer, compression="zstd")
    return buffer.getvalue().to_pybytes()
