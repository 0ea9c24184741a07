"""`runfold verify`: decide a run's log again, and compare."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.replaying import look, show_json, show_lines
from runfold.locate import find
from runfold.replay.gather import gather, is_folder_of_logs
from runfold.replay.intended import read_intended
from runfold.replay.show import render_verify
from runfold.replay.source import load
from runfold.replay.verify import verify
from runfold.sources import open_history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.locate import Where
    from runfold.replay.verify import VerifyReport

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|URL|DIR",
        help="A run's id, an archive's directory or URL, an exported file, or a directory of such.",
        show_default=False,
    ),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Let every difference that is not intended be an error.")]


def command(
    target: TargetArgument,
    strict: StrictOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Decide again on the inputs that the log recorded. The same decider must decide the same.

    A newer decider's differences are listed; they are no error, unless --strict is given and the list of intended
    differences beside the log (name.differences.toml) does not name them.
    """
    reports: list[VerifyReport] = []
    many = is_folder_of_logs(target)
    for report in _reports(find(data, server, context), target, many=many):
        reports.append(report)
        if output != "json":
            show_lines(render_verify(report, look()))
    if output == "json":
        show_json(reports if many else reports[0])
    raise typer.Exit(max(report.exit_code(strict=strict) for report in reports))


def _reports(where: Where, target: str, *, many: bool) -> Iterator[VerifyReport]:
    if not many:
        yield verify(asyncio.run(open_history(where, target)), intended=read_intended(target))
        return
    for found in gather(target):
        yield verify(load(found), intended=read_intended(found))
