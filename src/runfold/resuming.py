"""Running a job again where an earlier run of it left off: in the same storage, under the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runfold.errors import NotFoundError, UsageError
from runfold.events.edges import state_name
from runfold.events.transitions import RunAccepted
from runfold.folding import state_of
from runfold.ids import new_run_id
from runfold.jobs import changed
from runfold.replay.manifest import BLOBS
from runfold.replay.store import open_store
from runfold.sources import open_history
from runfold.workers.load import BLOB_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.job import Job
    from runfold.locate import Where


async def resumed_job(where: Where, run: str, settings: Iterable[str] = ()) -> Job:
    """Return the job that continues a run that is over; `settings` change it, as in `--set`.

    Raises:
        NotFound: nobody knows the run.
        UsageError: it is not over yet.
    """
    history = await open_history(where, run)
    state = state_of(history)
    if not state.terminal:
        if where.was_killed(run):
            raise UsageError(f"{run} was killed: `{where.hint('salvage', run)}` ends it; then it can be resumed")
        raise UsageError(f"{run} is not over: it is {state_name(state.phase)}. Nothing was started")
    accepted = next((item for item in history.entries[0].transitions if isinstance(item, RunAccepted)), None)
    if accepted is None:
        raise NotFoundError(f"the log of {run} does not say which job it was")
    before = accepted.job
    name = before.name or run
    again = msgspec.structs.replace(
        before,
        id=new_run_id(name),
        storage_name=before.storage_name or run,
        requested_by=where.settings.user,
    )
    return changed(again, settings)


def archived_blobs(where: Where, run: str, job: Job) -> tuple[bytes, ...]:
    """Return what the job names and the archive of the run it continues has kept: another broker may lack it."""
    store = open_store(where.archive_dir / run)
    found: list[bytes] = []
    for name in (job.entrypoint, job.storage_filesystem or ""):
        if name.startswith(BLOB_PREFIX):
            try:
                found.append(store.read(f"{BLOBS}/{name.removeprefix(BLOB_PREFIX)}"))
            except OSError:
                continue  # on the service that ran it the blob is still there
    return tuple(found)
