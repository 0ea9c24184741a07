"""`runfold audit`: check a run's log."""

from __future__ import annotations

import asyncio

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.replaying import TargetArgument, look, show_json, show_lines
from runfold.errors import EXIT_FINDINGS
from runfold.locate import find
from runfold.replay.audit import audit
from runfold.replay.show import render_audit
from runfold.sources import open_history


def command(
    target: TargetArgument,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Check a log against every rule: chain, numbering, legal edges, reasons, budgets, and what was archived beside."""
    history = asyncio.run(open_history(find(data, server, context), target, deep=True))
    report = audit(history)
    show_json(report) if output == "json" else show_lines(render_audit(report, look()))
    if not report.clean:
        raise typer.Exit(EXIT_FINDINGS)
