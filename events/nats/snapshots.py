"""The snapshots of one run on the broker: its state after some entries. The bucket drops its oldest when full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.nats.api import Api
from runfold.events.nats.cells import snapshot_cells
from runfold.events.snapshot import TAIL

if TYPE_CHECKING:
    from runfold.events.nats.connection import Connection


class RunSnapshots:
    """The snapshots of one run. What is read is as it was written, and no more than that."""

    def __init__(self, connection: Connection, run: str) -> None:
        self._run = run
        self._cells = snapshot_cells(connection)
        self._api = Api(connection)
        self._stream = connection.names.stream_of(connection.names.snapshots_bucket)

    async def newest(self, up_to_n: int | None = None) -> list[bytes]:
        """Return the newest ones, the newest first: at most one that is replaced again and again, and one that stays.

        With `up_to_n` only one that stays, of no later entry.
        """
        subjects = await self._api.subjects(self._stream, self._cells.subject(f"{self._run}.*")) or {}
        keys = {self._cells.key(subject).rpartition(".")[2] for subject in subjects}
        numbers = [int(key) for key in keys if key.isdecimal()]
        wanted = [TAIL] if TAIL in keys and up_to_n is None else []
        wanted += [str(n) for n in sorted(numbers) if up_to_n is None or n <= up_to_n][-1:]
        cells = [await self._cells.get(f"{self._run}.{key}") for key in wanted]
        return [cell.data for cell in cells if cell is not None and cell.data is not None]

    async def put(self, key: str, data: bytes) -> None:
        """Keep a snapshot in the place of the one before under that key."""
        await self._cells.put(f"{self._run}.{key}", data, expected=None)
