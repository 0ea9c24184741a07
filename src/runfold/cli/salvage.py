"""`runfold salvage`: what is left of one-shot runs that were killed."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from runfold.cli.command import DataOption, OutputOption, say
from runfold.cli.show import print_json, print_text
from runfold.locate import find
from runfold.salvaging import salvage, salvaged_text

KilledArgument = Annotated[
    str | None, typer.Argument(metavar="RUN", help="The run's id; default: all that were killed.", show_default=False)
]


def command(run: KilledArgument = None, output: OutputOption = "text", data: DataOption = None) -> None:
    """End one-shot runs that were killed, close their archives, and remove what they left behind.

    The user's code is not run again: their own controller writes the end into their log. `runfold resume RUN` goes on
    from the last checkpoint.
    """
    where = find(data)
    runs = where.killed() if run is None else [run]
    done = [asyncio.run(salvage(where, one, say)) for one in runs]
    if output == "json":
        print_json(done)
        return
    for one in done:
        print_text(salvaged_text(one))
    if not done:
        say(f"no one-shot run was killed in {where.data_dir}")
