"""`runfold restore`: bring a damaged log back from an archive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.admin import open_admin
from runfold.cli.command import DataOption, OutputOption, RunArgument
from runfold.cli.show import print_json, print_text
from runfold.events.counts import counted
from runfold.locate import find
from runfold.replay.source import load
from runfold.restoring import restore

if TYPE_CHECKING:
    from runfold.locate import Where
    from runfold.restoring import Restoration

FromOption = Annotated[
    str,
    typer.Option(
        "--from", metavar="URL", help="An archive's directory or URL, or an exported file.", show_default=False
    ),
]


def command(run: RunArgument, source: FromOption, output: OutputOption = "text", data: DataOption = None) -> None:
    """Copy a run's verified entries, byte for byte, from an archive into the next generation of its log.

    What the damaged log still holds behind the archive's end is kept as well, where it follows. A controller takes the
    run up again within seconds; its group was left alone meanwhile.
    """
    done = asyncio.run(_restore(find(data), run, source))
    if output == "json":
        print_json(
            {
                "run": done.run,
                "generation": done.generation,
                "entries": done.copied,
                "lost": done.lost,
                "head": {"n": done.head.n, "hash": done.head.hash},
            }
        )
        return
    entries = f"{counted(done.copied, 'entry')}, up to entry {done.copied - 1}"
    print_text(f"{done.run}: restored as generation {done.generation}: {entries}")
    if done.lost:
        print_text(
            f"Entries up to {done.known_n} had been shown and are lost; what was said since is folded again as far as "
            f"the inbox still holds it."
        )


async def _restore(where: Where, run: str, source: str) -> Restoration:
    history = await asyncio.to_thread(load, source)
    async with open_admin(where) as admin:
        return await restore(admin, run, history)
