"""`runfold ls`: runs, or refused jobs."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say
from runfold.cli.killed import say_killed
from runfold.cli.show import print_json, print_text, table
from runfold.errors import UsageError
from runfold.events.counts import counted
from runfold.locate import find
from runfold.runs import list_refused, list_runs
from runfold.unknown import stopped_text

if TYPE_CHECKING:
    from runfold.events.refusal import JobRefused
    from runfold.runs import Listed

RefusedOption = Annotated[bool, typer.Option("--refused", help="List the jobs that were refused instead.")]


def command(
    refused: RefusedOption = False,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """List the runs of the service and of the archive, the newest first."""
    where = find(data, server, context)
    if data is not None and where.named is None and not where.data_dir.exists():
        raise UsageError(f"--data: there is no directory {where.data_dir}")
    if refused:
        jobs = asyncio.run(list_refused(where))
        print_json(jobs) if output == "json" else print_text(_refused_table(jobs))
        return
    runs = asyncio.run(list_runs(where))
    if where.stopped:
        left = sum(one.where == "stopped" for one in runs)
        more = f"; {counted(left, 'run')} had not ended" if left else ""
        say(f"{stopped_text(where)}{more}.")
    print_json(runs) if output == "json" else print_text(_runs_table(runs))
    say_killed(where, where.killed())
    if not runs:
        say(f"there are no runs in {where.data_dir} yet" if where.named is None else "there are no runs yet")


def _runs_table(runs: list[Listed]) -> str:
    rows = [(r.run, r.state, str(r.attempt), _to_the_second(r.accepted_at), r.where, r.reason) for r in runs]
    return table(("RUN", "STATE", "ATTEMPT", "ACCEPTED", "WHERE", "REASON"), rows, width_max=_width())


def _refused_table(jobs: list[JobRefused]) -> str:
    rows = [(f"job-{job.sequence}", job.run or "", _to_the_second(job.at), f"{job.path}: {job.reason}") for job in jobs]
    return table(("JOB", "ASKED FOR", "REFUSED", "WHY"), rows, width_max=_width())


def _to_the_second(at: str) -> str:
    return f"{at[:19]}Z"


def _width() -> int | None:
    """A line a run on a terminal; a pipe gets everything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
