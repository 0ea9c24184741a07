"""`runfold run`: one shot, or on the service when one answers."""

from __future__ import annotations

from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, NodesOption, OutputOption, ServerOption, check_nodes, say
from runfold.cli.jobs import NameOption, SetOption, TargetArgument, WorkersOption, job_of
from runfold.early import start_early
from runfold.errors import UsageError
from runfold.locate import find

DetachOption = Annotated[
    bool, typer.Option("--detach-on-interrupt", help="Leave the run to the service on Ctrl-C, instead of aborting it.")
]

NoOutputOption = Annotated[bool, typer.Option("--no-output", help="Do not show what the ranks print.")]


def command(
    target: TargetArgument,
    workers: WorkersOption = None,
    settings: SetOption = None,
    name: NameOption = None,
    nodes: NodesOption = 1,
    detach_on_interrupt: DetachOption = False,
    no_output: NoOutputOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Train in one shot and show the result.

    Runs on the service when one answers; otherwise starts a broker, a controller and a supervisor for this run alone.
    What the ranks print to standard output stands among the progress, as far as it can be read; `logs` has all of it.
    The first Ctrl-C aborts the run in an orderly way, a second one stops everything at once.
    """
    where = find(data, server, context)
    service = where.service()
    check_nodes(nodes)
    if nodes > 1 and service is not None:
        raise UsageError("--nodes: a service answers here, and has nodes of its own; see `runfold up --nodes`")
    job = job_of(where, service, target, workers, settings, name)
    if service is None:
        where.make()
    killed = where.killed()
    early = start_early(where, job) if service is None else None
    # Only now: the children load what they need at the same time.
    from runfold.cli.killed import salvage_killed, say_killed
    from runfold.cli.running import run_and_show

    say_killed(where, killed, "; done when this run is over")
    code = run_and_show(
        where,
        job,
        early,
        nodes=nodes,
        detach=detach_on_interrupt,
        as_json=output == "json",
        show_output=not no_output,
    )
    if killed:
        from runfold.salvaging import salvaged_text

        salvage_killed(where, killed, lambda one: say(salvaged_text(where, one)))
    raise typer.Exit(code)
