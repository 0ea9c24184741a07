"""`runfold salvage`: what is left of one-shot runs that were killed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from runfold.cli.command import DataOption, OutputOption, say
from runfold.cli.killed import salvage_killed
from runfold.cli.show import print_json, print_text
from runfold.errors import ServiceError
from runfold.events.counts import counted
from runfold.locate import find
from runfold.salvaging import Salvaged, salvage, salvaged_text

KilledArgument = Annotated[
    str | None, typer.Argument(metavar="RUN", help="The run's id; default: all that were killed.", show_default=False)
]


def command(run: KilledArgument = None, output: OutputOption = "text", data: DataOption = None) -> None:
    """End one-shot runs that were killed, close their archives, and remove what they left behind.

    The user's code is not run again: their own controller writes the end into their log. `runfold resume RUN` goes on
    from the last checkpoint.
    """
    # They are looked for in the directory, whatever service the environment names.
    where = replace(find(data), named=None)
    done: list[Salvaged] = []

    def told(one: Salvaged) -> None:
        done.append(one)
        if output == "text":
            print_text(salvaged_text(where, one))

    failed_count = 0
    if run is not None:
        told(asyncio.run(salvage(where, run, say)))
    elif killed := where.killed():
        failed_count = salvage_killed(where, killed, told)
    else:
        say(f"no one-shot run was killed in {where.data_dir}")
    if output == "json":
        print_json(done)
    if failed_count:
        raise ServiceError(f"{counted(failed_count, 'run')} could not be salvaged; what is left of them is as it was")
