"""`runfold capacity`: what a pool has, and `capacity set N`: let it have so many slots from now on."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated

import msgspec
import typer

from runfold.capacities import heard_pools, set_capacity
from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption
from runfold.cli.show import print_json, print_text
from runfold.errors import UsageError
from runfold.events.pools import SLOTS_MAX_COUNT, SetCapacity
from runfold.events.subjects import is_token
from runfold.ids import new_request_id
from runfold.locate import find

WhatArgument = Annotated[str, typer.Argument(metavar="[set]", help="set, or nothing to show it.", show_default=False)]
SlotsArgument = Annotated[
    int | None, typer.Argument(metavar="[N]", help="Slots: the sum of all nodes, or of --node.", show_default=False)
]
NodeOption = Annotated[
    str | None, typer.Option("--node", metavar="NAME", help="Of this node alone; default: all.", show_default=False)
]
PoolOption = Annotated[
    str | None,
    typer.Option("--pool", metavar="NAME", help="The pool; default: local, or the only one.", show_default=False),
]
WithinOption = Annotated[
    float, typer.Option("--within", metavar="S", help="Take places that are held away after so long.")
]


def command(
    what: WhatArgument = "",
    slots: SlotsArgument = None,
    node: NodeOption = None,
    pool: PoolOption = None,
    within: WithinOption = 0.0,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Show what pools have, or let one have N slots from now on: elastic runs take what there is.

    Held places beyond N are taken away: their runs are told, after --within seconds their runners there are ended,
    and the runs go on with what fits, or wait. It lasts until the service is started anew, or is set again.
    """
    where = find(data, server, context)
    address = where.required_service()
    if what == "":
        pools = asyncio.run(heard_pools(address))
        if output == "json":
            print_json([{**msgspec.to_builtins(beat), "nodes": beat.all_nodes} for _, beat in sorted(pools.items())])
            return
        for name, beat in sorted(pools.items()):
            print_text(f"{name}: {_words(beat.all_nodes)}; {beat.free} free; runs: {', '.join(beat.runs) or 'none'}")
        return
    wish = _wish(what, slots, node, pool, within, where.settings.user)
    pool, answer = asyncio.run(set_capacity(address, pool, wish))
    if output == "json":
        print_json(msgspec.to_builtins(answer))
        return
    lines = [f"{pool}: {_words(answer.nodes)}"]
    lines += [f"{run} loses its places on {', '.join(nodes)}" for run, nodes in answer.losing.items()]
    print_text("\n".join(lines))


def _wish(what: str, slots: int | None, node: str | None, pool: str | None, within: float, by: str) -> SetCapacity:
    if what != "set" or slots is None:
        raise UsageError("say `runfold capacity`, or `runfold capacity set N`")
    if not 0 <= slots <= SLOTS_MAX_COUNT:
        raise UsageError(f"N: must be 0 to {SLOTS_MAX_COUNT}, not {slots}")
    if not (math.isfinite(within) and within >= 0):
        raise UsageError(f"--within: must be a finite number of seconds, 0 or more, not {within:g}")
    if pool is not None and not is_token(pool):
        raise UsageError(f"--pool: {pool!r} is no pool's name")
    return SetCapacity(id=new_request_id(), slots=slots, node=node, within_s=within, by=by)


def _words(nodes: dict[str, int]) -> str:
    return ", ".join(f"{node} {slots}" for node, slots in nodes.items()) or "no slots"
