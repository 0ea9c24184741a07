"""`runfold audit`: check runs' logs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say
from runfold.cli.replaying import look, show_json, show_lines
from runfold.errors import EXIT_FINDINGS, UsageError
from runfold.events.job import RUN_ID
from runfold.locate import find
from runfold.replay.archive import archive_path
from runfold.replay.audit import audit
from runfold.replay.errors import NotFound
from runfold.replay.gather import gather, is_folder_of_logs
from runfold.replay.show import render_audit
from runfold.replay.source import load
from runfold.sources import open_history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.locate import Where
    from runfold.replay.audit import AuditReport
    from runfold.replay.history import History

TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run's id, an archive's directory or URL, an exported file, or a directory of such.",
        show_default=False,
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="Every run that the service and the archive know.")]


def command(
    target: TargetArgument = None,
    every: AllOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Check a log against every rule: chain, causes, budgets, attempts, checkpoints, and the heads that others keep.

    Each rule that is broken says what it means and what to do. Ends with 1 when anything is found. With --all, the
    archives of runs whose logs the service has are looked at as well, and told of when they are damaged.
    """
    if (target is None) != every:
        raise UsageError("audit: name one log, or give --all")
    where = find(data, server, context)
    one = target is not None and not is_folder_of_logs(target)
    reports: list[AuditReport] = []
    for report in _reports(where, target):
        beside = any(report.run == before.run for before in reports) and target is None
        reports.append(report)
        if output != "json":
            named = msgspec.structs.replace(report, run=f"{report.run}, its archive {report.target}")
            show_lines(render_audit(named if beside else report, look()))
    if output == "json":
        show_json(reports[0] if one else reports)
    elif not reports:
        say("there are no runs yet")
    if not all(report.clean for report in reports):
        raise typer.Exit(EXIT_FINDINGS)


def _reports(where: Where, target: str | None) -> Iterator[AuditReport]:
    if target is not None and is_folder_of_logs(target):
        for found in gather(target):
            yield audit(load(found, deep=True))
        return
    if target is not None:
        history = asyncio.run(open_history(where, target, deep=True))
        if history.kind == "archive" and RUN_ID.fullmatch(target) and where.service() is not None:
            say(f"the service's log holds nothing of {target}, or its end alone: this is the archive {history.target}")
        yield audit(history)
        return
    for run in _runs(where):
        history = asyncio.run(open_history(where, run, deep=True))
        yield audit(history)
        if history.kind != "archive" and (archived := _archived(where, run)) is not None:
            yield archived


def _archived(where: Where, run: str) -> AuditReport | None:
    """Return what is wrong with the archive of a run whose log was looked at; None of a sound one, and without one."""
    path = archive_path(where.data_dir, run)
    try:
        # One that is closed while it is read does not fit together.
        history = load(path, deep=True)
        history = load(path, deep=True) if _is_damaged(history) else history
    except NotFound:
        return None
    return audit(history) if _is_damaged(history) else None


def _is_damaged(archive: History) -> bool:
    """Whether more is wrong than that it is not closed yet: its run goes on, or has just ended."""
    return any(damage.flaw != "truncated" for damage in archive.damages)


def _runs(where: Where) -> list[str]:
    from runfold.runs import list_runs

    return [listed.run for listed in asyncio.run(list_runs(where))]
