"""`runfold export`: a run in one file, or as tables, or as a trace."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say
from runfold.cli.replaying import TargetArgument, say_followed, show_json
from runfold.errors import EXIT_FINDINGS, RunfoldError, UsageError
from runfold.events.counts import counted
from runfold.locate import find
from runfold.overwriting import check_overwriting
from runfold.replay.export import export_lines, refuse_damaged
from runfold.replay.formats import csv_lines, parquet_bytes
from runfold.replay.perfetto import trace_bytes
from runfold.replay.tables import TABLES
from runfold.sources import open_history

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.replay.history import History

ExportFormat = Literal["jsonl", "csv", "parquet", "perfetto"]
TableName = Literal["transitions", "reports", "entries"]
TableOption = Annotated[
    TableName,
    typer.Option("--table", metavar="NAME", help="Which table goes to standard output as csv.", show_default=True),
]
FormatOption = Annotated[
    ExportFormat, typer.Option("--format", metavar="FORMAT", help="jsonl, csv, parquet or perfetto.", show_default=True)
]
ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="PATH",
        help="The file to write (jsonl, perfetto), or the directory (csv, parquet: one file a table).",
        show_default=False,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Write over a file that is no export.")]
_TABLES: Final = tuple(TABLES)
COLUMNS_COMPARED_COUNT: Final = 5
"""So many columns tell whose table a file is: some have more behind them in one run than in another."""


def command(
    target: TargetArgument,
    form: FormatOption = "jsonl",
    to: ToOption = None,
    table: TableOption = "transitions",
    force: ForceOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Write a run's log: its exact bytes (jsonl), tables (csv, parquet), or a trace for Perfetto.

    jsonl, perfetto and one table of csv go to standard output unless --to is given; what stands there is replaced if it
    is an export of the same format, anything else with --force. An export in jsonl is read by every command that reads
    a log; a flipped bit anywhere in it is found by audit. Of a damaged log there is none: the copy would look whole.
    The other formats have what can be read of it, are said to, and end with 1.
    """
    if to is None and form == "parquet":
        raise UsageError("export: Parquet is binary: name a directory by --to DIR")
    history = asyncio.run(open_history(find(data, server, context), target))
    if form == "jsonl":
        refuse_damaged(history)
    say_followed(history)
    _put(history, form, to, table, force=force, as_json=output == "json")
    if history.damages and not history.is_open:
        raise typer.Exit(EXIT_FINDINGS)


def _put(
    history: History,
    form: ExportFormat,
    to: Path | None,
    table: TableName,
    *,
    force: bool,
    as_json: bool,
) -> None:
    if to is None:
        for piece in _pieces(history, form, table):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    written = _write(history, form, to, force=force)
    if as_json:
        show_json({"run": history.run, "format": form, "files": [str(path) for path in written]})
    else:
        say(f"{history.run}: {counted(len(history.links), 'entry')} written to {', '.join(map(str, written))}")


def _pieces(history: History, form: ExportFormat, table: TableName) -> Iterable[bytes]:
    match form:
        case "jsonl":
            return export_lines(history)
        case "perfetto":
            return (trace_bytes(history),)
        case "csv":
            return csv_lines(TABLES[table](history))
        case "parquet":
            return (parquet_bytes(TABLES[table](history)),)


def _write(history: History, form: ExportFormat, to: Path, *, force: bool) -> list[Path]:
    try:
        if form in ("jsonl", "perfetto"):
            if not force:
                check_overwriting(to, form)
            to.parent.mkdir(parents=True, exist_ok=True)
            return [_file(to, _pieces(history, form, "transitions"))]
        for name in () if force else _TABLES:
            columns = tuple(TABLES[name](history).columns)[:COLUMNS_COMPARED_COUNT]
            check_overwriting(to / f"{name}.{form}", form, columns)
        to.mkdir(parents=True, exist_ok=True)
        return [_file(to / f"{name}.{form}", _pieces(history, form, name)) for name in _TABLES]
    except OSError as error:
        raise RunfoldError(f"export: {error.filename or to} cannot be written: {error.strerror}") from error


def _file(path: Path, pieces: Iterable[bytes]) -> Path:
    with path.open("wb") as file:
        file.writelines(pieces)
    return path
