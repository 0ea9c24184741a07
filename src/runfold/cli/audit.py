"""`runfold audit`: check runs' logs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say
from runfold.cli.replaying import look, show_json, show_lines
from runfold.errors import EXIT_FINDINGS, UsageError
from runfold.locate import find
from runfold.replay.audit import audit
from runfold.replay.gather import gather, is_folder_of_logs
from runfold.replay.show import render_audit
from runfold.replay.source import load
from runfold.sources import open_history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.locate import Where
    from runfold.replay.audit import AuditReport

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

    Each rule that is broken says what it means and what to do. Ends with 1 when anything is found.
    """
    if (target is None) != every:
        raise UsageError("audit: name one log, or give --all")
    where = find(data, server, context)
    one = target is not None and not is_folder_of_logs(target)
    reports: list[AuditReport] = []
    for report in _reports(where, target):
        reports.append(report)
        if output != "json":
            show_lines(render_audit(report, look()))
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
    for name in _runs(where) if target is None else [target]:
        yield audit(asyncio.run(open_history(where, name, deep=True)))


def _runs(where: Where) -> list[str]:
    from runfold.runs import list_runs

    return [listed.run for listed in asyncio.run(list_runs(where))]
