"""`runfold stacks`: what the ranks of a run do right now, and the stacks of their threads."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, RunArgument, ServerOption
from runfold.cli.show import print_json, print_text
from runfold.errors import NoAnswerError
from runfold.locate import find
from runfold.stacks import RankLook, look_at_ranks

RankOption = Annotated[
    int | None, typer.Option("--rank", metavar="N", help="Show this rank alone.", show_default=False)
]


def command(
    run: RunArgument,
    rank: RankOption = None,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Look at the ranks: each says where it is, even if it is stuck. The log keeps what was seen."""
    where = find(data, server, context)
    looks = asyncio.run(look_at_ranks(where, run, where.settings.user, rank))
    shown = [look for look in looks if rank in (None, look.seen.rank)]
    if rank is not None and not shown:
        raise NoAnswerError(f"{run}: rank {rank} was not seen; its runner did not answer, or it is not at work now")
    if output == "json":
        print_json([{**_document(look), "text": look.text} for look in shown])
        return
    for look in shown:
        print_text(f"rank {look.seen.rank} {look.seen.words}")
        if look.seen.trouble is not None:
            print_text(f"  no stacks: {look.seen.trouble}")
        if look.text:
            print_text(look.text)


def _document(look: RankLook) -> dict[str, object]:
    seen = look.seen
    fields = ("rank", "life", "doing", "where", "waits_in", "stacks", "trouble")
    return {name: getattr(seen, name) for name in fields}
