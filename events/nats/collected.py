"""Runs that were given back by `gc`: of their log the last entry is left, which tells their end.

What is shown of such a run says so for good: a marker in the place of its status, and `gone` as its assignment. They
are never simply purged: a broker that was killed reads its files again, and takes what they had replaced for the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runfold.events.assignment import Assignment
from runfold.events.nats.api import Api
from runfold.events.nats.cells import Written, assignment_cells, status_cells
from runfold.events.remains import last_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.nats.cells import Cells
    from runfold.events.nats.connection import Connection
    from runfold.events.remains import LastEntry


async def find_collected(connection: Connection, run: str) -> LastEntry | None:
    """Return the last entry of a run that was given back; None of any other run.

    Raises:
        BrokerError: the broker does not answer.
    """
    names, api = connection.names, Api(connection)
    standing = await api.subjects(names.log, names.subjects.logs(run)) or {}
    if any(count != 1 for count in standing.values()):
        return None
    newest: LastEntry | None = None
    for subject in standing:
        message = await api.last_message(names.log, subject)
        found = None if message is None else last_of(run, message.data)
        if found is not None and (newest is None or found.head.n > newest.head.n):
            newest = found
    return newest


async def settle_collected(connection: Connection, runs: Iterable[str]) -> frozenset[str]:
    """See that what is shown of runs tells of their end if they were given back; return those.

    Raises:
        BrokerError: the broker does not answer; the same call goes on.
    """
    settled: set[str] = set()
    for run in sorted(runs):
        last = await find_collected(connection, run)
        if last is not None:
            await show_gone(connection, last)
            await mark_collected(status_cells(connection), run)
            settled.add(run)
    return frozenset(settled)


async def show_gone(connection: Connection, last: LastEntry) -> int:
    """Have the assignment say that the run is gone, in few bytes; return how many messages were replaced."""
    entry, head = last.entry, last.head
    gone = Assignment(run=entry.run, epoch=entry.epoch, n=head.n, hash=head.hash, attempt=0, want="gone")
    data = msgspec.json.encode(gone)
    cells = assignment_cells(connection)
    cell = await cells.get(entry.run)
    if cell is not None and cell.data == data:
        return 0
    written = await cells.put(entry.run, data, expected=0 if cell is None else cell.sequence)
    return int(cell is not None and isinstance(written, Written))


async def mark_collected(cells: Cells, key: str) -> int:
    """Put a marker in the place of a value, which outlives every value before it; return how many it replaced."""
    cell = await cells.get(key)
    if cell is None or cell.data is None:
        return 0
    return int(isinstance(await cells.delete(key, expected=cell.sequence), Written))
