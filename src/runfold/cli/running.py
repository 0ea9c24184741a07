"""Running a job from the command line: progress, then how it ended."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runfold.cli.command import say
from runfold.cli.show import print_json, print_text
from runfold.controller.status import status
from runfold.errors import EXIT_ABORTED, EXIT_FINDINGS, EXIT_FINE
from runfold.events.state import Aborted, Finished
from runfold.explain import ending_text
from runfold.locate import STORAGE_FOLDER
from runfold.progress import progress
from runfold.run import Detached, Order, run_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.early import Early
    from runfold.events.job import Job
    from runfold.follow import Onlooker
    from runfold.locate import Where


def run_and_show(
    where: Where,
    job: Job,
    early: Early | None,
    *,
    nodes: int = 1,
    detach: bool,
    detached_code: int = EXIT_FINE,
    as_json: bool,
    show_output: bool = True,
    blobs: tuple[bytes, ...] = (),
) -> int:
    """Run a job to its end, show its progress and its end, and return the exit code.

    `detach`: an interrupt leaves the run to its service, if there is one, and `detached_code` is returned.
    """
    with progress(sys.stderr if as_json else sys.stdout) as shown, _watched(where, job, shown) as onlooker:
        order = Order(
            job=job,
            where=where,
            onlooker=onlooker,
            say=say,
            early=early,
            nodes=nodes,
            detach=detach,
            blobs=blobs,
            printed=shown.printed if show_output else None,
        )
        try:
            outcome = asyncio.run(run_job(order))
        except Detached as detached:
            say(str(detached))
            return detached_code
    state = outcome.state
    if as_json:
        print_json(status(state, outcome.head, state.accepted_at))
    else:
        out = sys.stdout if isinstance(state.phase, Finished) else sys.stderr
        print_text(f"\n{ending_text(state, where)}", out)
    return exit_code_for(state.phase)


@contextmanager
def _watched(where: Where, job: Job, shown: Onlooker) -> Iterator[Onlooker]:
    """Tell the callbacks of RUNFOLD_CALLBACKS and of the job too, for as long as the block lasts."""
    if not where.settings.callbacks and not job.hooks.callbacks:
        yield shown
        return
    from runfold.hooks import own_callbacks
    from runfold.observers import Observers, Watching
    from runfold.parcels import named_callbacks

    told = [*named_callbacks(), *own_callbacks(job, all_of_them=False)]
    watching = Watching(Observers(told, where.data_dir / STORAGE_FOLDER), shown)
    try:
        yield watching
    finally:
        watching.close()


def exit_code_for(phase: object) -> int:
    """Return the exit code that tells how a run ended."""
    if isinstance(phase, Finished):
        return EXIT_FINE
    return EXIT_ABORTED if isinstance(phase, Aborted) else EXIT_FINDINGS
