"""`runfold run`: one shot, or on the service when one answers."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say
from runfold.cli.show import print_json, safe_text
from runfold.cli.submit import NameOption, SetOption, TargetArgument, WorkersOption, job_of
from runfold.controller.status import status
from runfold.errors import EXIT_ABORTED, EXIT_FINDINGS, EXIT_FINE
from runfold.events.state import Aborted, Finished
from runfold.explain import ending_text
from runfold.locate import find
from runfold.progress import progress
from runfold.run import Detached, Order, run_job

DetachOption = Annotated[
    bool, typer.Option("--detach-on-interrupt", help="Leave the run to the service on Ctrl-C, instead of aborting it.")
]


def command(
    target: TargetArgument,
    workers: WorkersOption = None,
    settings: SetOption = None,
    name: NameOption = None,
    detach_on_interrupt: DetachOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Train in one shot and show the result.

    Runs on the service when one answers; otherwise starts a broker, a controller and a supervisor for this run alone.
    The first Ctrl-C aborts the run in an orderly way, a second one stops everything at once.
    """
    where = find(data, server, context)
    job = job_of(where, target, workers, settings, name)
    with progress(sys.stderr if output == "json" else sys.stdout) as onlooker:
        order = Order(job=job, where=where, onlooker=onlooker, say=say, detach=detach_on_interrupt)
        try:
            outcome = asyncio.run(run_job(order))
        except Detached as detached:
            say(str(detached))
            return
    state = outcome.state
    if output == "json":
        print_json(status(state, outcome.head, state.accepted_at))
    else:
        print(
            f"\n{safe_text(ending_text(state))}", file=sys.stdout if isinstance(state.phase, Finished) else sys.stderr
        )
    raise typer.Exit(exit_code_for(state.phase))


def exit_code_for(phase: object) -> int:
    """Return the exit code that tells how a run ended."""
    if isinstance(phase, Finished):
        return EXIT_FINE
    return EXIT_ABORTED if isinstance(phase, Aborted) else EXIT_FINDINGS
