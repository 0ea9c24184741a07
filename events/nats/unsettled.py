"""Runs whose status does not say that they are over: statuses are not synced, a broker that dies may lose the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runfold.events.nats.api import Api
from runfold.events.nats.cells import assignment_cells, status_cells
from runfold.events.remains import ENDS

if TYPE_CHECKING:
    from runfold.events.nats.connection import Connection


class _Shown(msgspec.Struct):
    state: str = ""


async def unsettled_runs(connection: Connection) -> frozenset[str]:
    """Return the runs whose status tells of no end, or is missing though they have an assignment.

    A marker in a status's place is that of a run that was given back.

    Raises:
        BrokerError: the broker does not answer.
    """
    assignments, names = assignment_cells(connection), connection.names
    shown = await status_cells(connection).read_all()
    subjects = await Api(connection).subjects(names.assignments, assignments.subject("*"))
    assigned = {assignments.key(subject) for subject in subjects or {}}
    ended = {run for run, cell in shown.items() if cell.data is None or _has_ended(cell.data)}
    return frozenset((assigned | shown.keys()) - ended)


def _has_ended(data: bytes) -> bool:
    try:
        return msgspec.json.decode(data, type=_Shown).state in ENDS
    except msgspec.DecodeError:
        return False
