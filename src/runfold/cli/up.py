"""`runfold up`: the service on this machine."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Annotated, Final

import typer

from runfold.cli.command import DataOption, NodesOption, OutputOption, check_nodes, say
from runfold.cli.killed import say_killed
from runfold.cli.show import print_json_line, print_text
from runfold.errors import UsageError
from runfold.events.job import RUN_ID
from runfold.events.pools import LOCAL_POOL
from runfold.events.subjects import is_token
from runfold.locate import find
from runfold.service import Plan, Service
from runfold.up import serve
from runfold.workers.pools.ray import RayConfig

CONTROLLERS_MAX_COUNT: Final = 16
EVERYWHERE: Final = ("0.0.0.0", "::", "*", "")  # noqa: S104  # they are refused
RAY: Final = "ray"
RAY_CPUS: Final = 2
"""Of a cluster that is started here."""
RESERVED: Final = "runfold."
"""How the labels begin that every node has: its name, and that of its machine."""

SlotsOption = Annotated[
    int | None,
    typer.Option(
        "--slots", metavar="N", help="Ranks of one CPU that fit on each node; default: the CPUs.", show_default=False
    ),
]
NodeOption = Annotated[str, typer.Option("--node", metavar="NAME", help="What this machine is called in logs.")]
ControllersOption = Annotated[
    int, typer.Option("--controllers", metavar="N", help="How many controllers share the runs.", show_default=True)
]
PoolOption = Annotated[
    str, typer.Option("--pool", metavar="NAME", help="The pool of this machine; 'ray' for that of a Ray cluster.")
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="ADDRESS",
        help="The Ray cluster whose nodes are the pool: 'auto', or host:port; default: a small one of its own.",
        show_default=False,
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="[NODE:]KEY=VALUE",
        help="A label of all nodes, or of one, by which jobs choose: scaling.label_selector. Several times.",
        show_default=False,
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST",
        help="The address of this machine at which other nodes reach the broker, unencrypted; default: none.",
        show_default=False,
    ),
]


def command(
    slots: SlotsOption = None,
    node: NodeOption = "local",
    pool: PoolOption = LOCAL_POOL,
    nodes: NodesOption = 1,
    label: LabelOption = None,
    ray_address: RayOption = None,
    listen: ListenOption = None,
    controllers: ControllersOption = 1,
    output: OutputOption = "text",
    data: DataOption = None,
) -> None:
    """Start broker, controller, supervisor and archiver here, and keep them running until Ctrl-C or SIGTERM.

    Other commands find the service by the file connection.json in the data directory.
    """
    if slots is not None and slots < 1:
        raise UsageError(f"--slots: must be at least 1, not {slots}")
    check_nodes(nodes)
    _check_names(node, pool)
    if not 1 <= controllers <= CONTROLLERS_MAX_COUNT:
        raise UsageError(f"--controllers: must be 1 to {CONTROLLERS_MAX_COUNT}, not {controllers}")
    if listen in EVERYWHERE:
        raise UsageError(f"--listen: {listen!r} is where nobody can be reached; give an address of this machine's own")
    where = find(data)
    where.make()
    plan = Plan(
        where.data_dir,
        where.settings.namespace,
        slots=slots or max((os.cpu_count() or 1) // nodes, 1),
        node=node,
        pool=pool,
        controllers_count=controllers,
        nodes_count=nodes,
        ray=_ray(pool, ray_address, slots),
        listen=listen,
    )
    plan = replace(plan, labels=_labels(label or [], plan.nodes))

    def ready(service: Service) -> None:
        if output == "json":
            document = {"server": service.server, "data": str(plan.data_dir), "slots": plan.slots, "nodes": plan.nodes}
            print_json_line({**document, "pids": service.pids})
            return
        pids = ", ".join(f"{role} {pid}" for role, pid in service.pids.items())
        print_text(
            f"runfold is up: {service.server}, {slots_words(plan)}, data in {plan.data_dir}\n{pids}; Ctrl-C stops it"
        )

    say_killed(where, where.killed())
    asyncio.run(serve(plan, say, ready))


def _ray(pool: str, address: str | None, slots: int | None) -> RayConfig | None:
    """Return which Ray cluster the pool is, if it is one: a pool called `ray`, or one with a cluster's address."""
    if pool != RAY and address is None:
        return None
    return RayConfig(address=address, cpus_count=slots or RAY_CPUS)


def _labels(given: list[str], nodes: list[str]) -> dict[str, dict[str, str]]:
    """Return the labels of each node, as given on the command line; a later one of the same name wins."""
    labels: dict[str, dict[str, str]] = {node: {} for node in nodes}
    for one in given:
        name, equals, value = one.partition("=")
        node, colon, key = name.rpartition(":")
        if not equals or not key or not value:
            raise UsageError(f"--label: {one!r} is no label; give KEY=VALUE, or NODE:KEY=VALUE for one node")
        if key.startswith(RESERVED):
            raise UsageError(f"--label: {key!r} is runfold's own to give; {RESERVED}… are taken")
        if colon and node not in labels:
            raise UsageError(f"--label: {one!r} names no node; there are {', '.join(nodes)}")
        for each in [node] if colon else nodes:
            labels[each][key] = value
    return labels


def _check_names(node: str, pool: str) -> None:
    """Both become parts of subjects; a job may name the pool, and the supervisor speaks as `pool-<pool>`."""
    if not RUN_ID.fullmatch(pool):
        raise UsageError(f"--pool: {pool!r} is no pool name: lower-case letters, digits and '-'")
    if not is_token(node):
        raise UsageError(f"--node: {node!r} is no name of a node: letters, digits, '-' and '_', at most 64")
    if node == f"pool-{pool}":
        raise UsageError(f"--node: {node!r} is how the supervisor of the pool {pool} is called; give another name")


def slots_words(plan: Plan) -> str:
    """Return what a plan's machine offers, in words."""
    if plan.ray is not None:
        cluster = f"Ray cluster at {plan.ray.address}" if plan.ray.address else "Ray cluster of its own"
        return f"pool {plan.pool}: the {cluster}"
    nodes = plan.nodes
    return f"{plan.slots} slots" if len(nodes) == 1 else f"{plan.slots} slots on each of {', '.join(nodes)}"
