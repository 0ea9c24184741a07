"""`runfold gc`: give back what the broker keeps of runs that are archived."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.admin import open_admin
from runfold.cli.command import DataOption, OutputOption, say
from runfold.cli.show import print_json, print_text
from runfold.events.counts import counted
from runfold.locate import find
from runfold.reclaiming import parse_age, reclaim

if TYPE_CHECKING:
    from runfold.locate import Where
    from runfold.reclaiming import Reclaimed

OlderOption = Annotated[
    str, typer.Option("--older-than", metavar="AGE", help="How long ago a run must have ended, as in 30d.")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be given back.")]


def command(
    older_than: OlderOption = "30d", dry_run: DryOption = False, output: OutputOption = "text", data: DataOption = None
) -> None:
    """Purge from the broker runs that ended long ago and whose archive verifies, whole and with the same end.

    Their last entry stays, so that an id is never used twice; `get`, `logs` and `replay` read them from the archive.
    """
    done = asyncio.run(_reclaim(find(data), parse_age(older_than), dry_run=dry_run))
    if output == "json":
        print_json(done)
        return
    for one in done:
        if one.kept is None:
            given = "would be given back" if dry_run else f"{counted(one.messages, 'message')} given back"
            print_text(f"{one.run}: {given}")
        else:
            say(f"{one.run} is kept: {one.kept}")
    if not done:
        say(f"no run ended longer than {older_than} ago")


async def _reclaim(where: Where, older_than_s: float, *, dry_run: bool) -> list[Reclaimed]:
    async with open_admin(where) as admin:
        return await reclaim(admin, where.data_dir, older_than_s, dry_run=dry_run)
