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

    async def newest(self) -> list[bytes]:
        """Return the newest one: that which is replaced again and again, or else one that stays."""
        cell = await self._cells.get(f"{self._run}.{TAIL}")
        if cell is not None and cell.data is not None:
            return [cell.data]
        found = [await self.get(n) for n in (await self.numbers())[-1:]]
        return [data for data in found if data is not None]

    async def numbers(self) -> list[int]:
        """Return the entries after which a snapshot stays, in order."""
        subjects = await self._api.subjects(self._stream, self._cells.subject(f"{self._run}.*")) or {}
        keys = (self._cells.key(subject).rpartition(".")[2] for subject in subjects)
        return sorted(int(key) for key in keys if key.isdecimal())

    async def get(self, n: int) -> bytes | None:
        """Return the snapshot that was kept after an entry; None when there is none."""
        cell = await self._cells.get(f"{self._run}.{n}")
        return None if cell is None else cell.data

    async def put(self, key: str, data: bytes) -> None:
        """Keep a snapshot in the place of the one before under that key."""
        await self._cells.put(f"{self._run}.{key}", data, expected=None)
