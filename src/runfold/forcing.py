"""`abort --force`: the group of a run that no controller decides for is stopped outside its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from runfold.errors import NotFoundError, UsageError
from runfold.events.assignment import Assignment, StopOrder
from runfold.events.config import Timeouts
from runfold.events.nats.api import Api
from runfold.events.nats.cells import Written, assignment_cells, lease_cells, status_cells
from runfold.events.status import Status

if TYPE_CHECKING:
    from runfold.events.nats.connection import Connection

TRIES_MAX: Final = 8


async def force_stop(admin: Connection, run: str, reason: str) -> str:
    """Order a run's group to stop, by its last assignment said once more; return what is true now, in words.

    Nothing is written to the log: a run whose log is restored later goes on from there, without its group.

    Raises:
        NotFoundError: the service has no assignment of that run.
        UsageError: a controller decides for the run: ask that one.
        BrokerError: the broker did not answer.
    """
    await _check_nobody_decides(admin, run)
    cells = assignment_cells(admin)
    for _ in range(TRIES_MAX):
        cell = await cells.get(run)
        if cell is None or cell.data is None:
            raise NotFoundError(f"the service has no assignment of {run!r}")
        standing = msgspec.json.decode(cell.data, type=Assignment)
        if standing.want == "gone":
            return "its group is gone already; nothing was changed"
        if isinstance(await cells.put(run, _stopped(standing, reason), expected=cell.sequence), Written):
            return "its group was told to stop, outside the log"
    raise UsageError(
        f"the assignment of {run} keeps changing: a controller decides for it; use `abort` without --force"
    )


def _stopped(standing: Assignment, reason: str) -> bytes:
    timeouts = standing.job.timeouts if standing.job is not None else Timeouts()
    stop = StopOrder(reason=f"forced: {reason}", grace_s=timeouts.stop_grace_s, deadline_t=0.0)
    return msgspec.json.encode(
        msgspec.structs.replace(standing, want="stop", stop=stop, tasks=(), forced=standing.forced + 1)
    )


async def _check_nobody_decides(admin: Connection, run: str) -> None:
    cell = await status_cells(admin).get(run)
    status = msgspec.json.decode(cell.data, type=Status) if cell is not None and cell.data else None
    if status is not None and status.quarantined:
        return
    leases = lease_cells(admin)
    names = admin.names
    living = await Api(admin).subjects(names.stream_of(names.leases_bucket), leases.subject("*"))
    if living:
        raise UsageError(
            f"--force: {run} is not quarantined, and a controller is there to decide for it\n"
            f"Use `runfold abort {run} --reason …` without --force: it ends the run in order, and its log says so."
        )
