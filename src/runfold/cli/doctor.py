"""`runfold doctor`: this machine and the service."""

from __future__ import annotations

import asyncio
from typing import Final

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.show import print_json, print_text
from runfold.errors import EXIT_FINDINGS
from runfold.health import examine
from runfold.locate import find

_MARKS: Final = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


def command(
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Check Python, the broker, the data directory, the environment and the service; exit code 1 on any finding."""
    checks = asyncio.run(examine(find(data, server, context)))
    if output == "json":
        print_json(checks)
    else:
        for check in checks:
            advice = f"; {check.advice}" if check.advice else ""
            print_text(f"{_MARKS[check.verdict]}  {check.what}: {check.found}{advice}")
    if any(check.verdict != "ok" for check in checks):
        raise typer.Exit(EXIT_FINDINGS)
