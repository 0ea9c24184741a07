"""The options by which a command line asks for a job; what `run` and `submit` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runfold.jobs import check_file, is_job_file, job_from

if TYPE_CHECKING:
    from runfold.events.job import Job
    from runfold.locate import Address, Where

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="MODULE:FUNCTION, FILE.py:FUNCTION, or a job file (.toml, .json).",
        show_default=False,
    ),
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers", metavar="N", help="How many ranks; MIN-MAX for as many as there is room for.", show_default=False
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Set a field of the job, as in failure.max_failures=3.", show_default=False
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="What the run is called.", show_default=False)
]


def job_of(
    where: Where,
    service: Address | None,
    target: str,
    workers: str | None,
    settings: list[str] | None,
    name: str | None,
) -> Job:
    """Return the job that a command line asks for.

    A service found on this machine is told to look for the code here; one named by its address may stand on another
    machine, and has its own working directory.
    """
    on_this_machine = service is None or service.local
    here = str(Path.cwd()) if service is not None and service.local else None
    if is_job_file(target) and on_this_machine:
        here = str(Path(target).parent.absolute())
    job = job_from(
        target,
        workers=workers,
        settings=settings or (),
        name=name,
        working_dir=here,
        requested_by=where.settings.user,
    )
    if on_this_machine:
        check_file(job)
    return job
