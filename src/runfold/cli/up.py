"""`runfold up`: the service on this machine."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Final

import typer

from runfold.cli.command import DataOption, OutputOption, say
from runfold.cli.show import print_json_line
from runfold.errors import UsageError
from runfold.locate import find
from runfold.service import Plan, Service
from runfold.up import serve

CONTROLLERS_MAX_COUNT: Final = 16

SlotsOption = Annotated[
    int | None,
    typer.Option("--slots", metavar="N", help="Ranks of one CPU that fit; default: the CPUs.", show_default=False),
]
NodeOption = Annotated[str, typer.Option("--node", metavar="NAME", help="What this machine is called in logs.")]
ControllersOption = Annotated[
    int, typer.Option("--controllers", metavar="N", help="How many controllers share the runs.", show_default=True)
]
PoolOption = Annotated[str, typer.Option("--pool", metavar="NAME", help="The pool of this machine.")]


def command(
    slots: SlotsOption = None,
    node: NodeOption = "local",
    pool: PoolOption = "local",
    controllers: ControllersOption = 1,
    output: OutputOption = "text",
    data: DataOption = None,
) -> None:
    """Start broker, controller, supervisor and archiver here, and keep them running until Ctrl-C or SIGTERM.

    Other commands find the service by the file connection.json in the data directory.
    """
    if slots is not None and slots < 1:
        raise UsageError(f"--slots: must be at least 1, not {slots}")
    if not 1 <= controllers <= CONTROLLERS_MAX_COUNT:
        raise UsageError(f"--controllers: must be 1 to {CONTROLLERS_MAX_COUNT}, not {controllers}")
    where = find(data)
    plan = Plan(
        where.data_dir,
        where.settings.namespace,
        slots=slots or os.cpu_count() or 1,
        node=node,
        pool=pool,
        controllers_count=controllers,
    )

    def ready(service: Service) -> None:
        if output == "json":
            document = {"server": service.server, "data": str(plan.data_dir), "slots": plan.slots, "pids": service.pids}
            print_json_line(document)
            return
        pids = ", ".join(f"{role} {pid}" for role, pid in service.pids.items())
        print(
            f"runfold is up: {service.server}, {plan.slots} slots, data in {plan.data_dir}\n{pids}; Ctrl-C stops it",
            flush=True,
        )

    asyncio.run(serve(plan, say, ready))
