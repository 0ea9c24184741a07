"""`runfold archive`: a run's archive at a place of one's own."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from runfold.archiver import archive_to
from runfold.cli.command import ContextOption, DataOption, OutputOption, ServerOption, say
from runfold.cli.replaying import TargetArgument, show_json
from runfold.errors import RunfoldError, UnreachableError
from runfold.events.counts import counted
from runfold.locate import find

UrlArgument = Annotated[
    str,
    typer.Argument(metavar="URL", help="A directory, or any URL that fsspec knows (s3://…).", show_default=False),
]


def command(
    target: TargetArgument,
    url: UrlArgument,
    output: OutputOption = "text",
    data: DataOption = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Write a run's archive: its log, the blobs it names, its last output. Again it only adds what is new."""
    try:
        archived = asyncio.run(archive_to(find(data, server, context), target, url))
    except UnreachableError:
        raise  # an OSError by its kind, and not of what is written
    except OSError as error:
        raise RunfoldError(f"archive: {url}: {error}. What was written stands; the same command goes on") from error
    if output == "json":
        show_json(archived)
        return
    state = f"closed, {archived.outcome}" if archived.outcome else "not closed, the run goes on"
    entries = counted(archived.entries, "entry")
    say(f"{archived.run}: {entries} up to {archived.head.hash[:12]} in {archived.url} ({state})")
