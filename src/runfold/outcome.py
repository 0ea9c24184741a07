"""What an ended run raises, and what its log names beside itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.errors import (
    ControllerError,
    PreemptionError,
    RunAbortedError,
    TrainingFailedError,
    UnreachableError,
    WorkerGroupError,
)
from runfold.events.state import Aborted, Errored
from runfold.explain import failure_text
from runfold.replay.archive import archive_path
from runfold.replay.store import open_store
from runfold.replay.unarchive import read_blob

if TYPE_CHECKING:
    from runfold.events.state import RunState
    from runfold.locate import Where


def error_of(state: RunState) -> TrainingFailedError | RunAbortedError | None:
    """Return the error of an ended run; None for a finished one."""
    if isinstance(state.phase, Aborted):
        return RunAbortedError(f"{state.run} was aborted: {state.phase.reason}")
    if not isinstance(state.phase, Errored):
        return None
    failure = state.phase.failure or state.failure
    if failure is None:
        return ControllerError(f"{state.run} errored: {state.phase.reason}")
    message = f"{failure_text(failure)}\n{state.run} errored: {state.phase.reason}"
    if failure.kind == "preempted":
        return PreemptionError(message)
    if failure.rank is None:
        return ControllerError(message)
    failures = {other.rank: failure_text(other) for other in (*state.others, failure) if other.rank is not None}
    return WorkerGroupError(message, failures)


async def named_blob(where: Where, run: str, digest: str) -> bytes:
    """Return a blob that a run's log names: from the service, else from the archive.

    Raises:
        runfold.replay.errors.NotFound: nobody has it.
    """
    bare = digest.rpartition(":")[2]
    for address in where.services():
        from runfold.client import open_client
        from runfold.events.nats.blobs import Blobs
        from runfold.events.nats.errors import BlobMissing

        try:
            async with open_client(address) as client:
                return await Blobs(client.connection).get(f"sha256:{bare}")
        except (BlobMissing, UnreachableError):
            continue
    return read_blob(open_store(archive_path(where.data_dir, run)), bare)
