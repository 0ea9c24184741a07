"""What is tried against another who keeps writing is tried so often: then it is said, and nothing was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from runfold import forcing, restoring
from runfold.errors import RestoreRefusedError, UsageError
from runfold.events.assignment import Assignment
from runfold.events.entry import decode_entry, hash_entry
from runfold.events.nats.cells import Cell, Clash, Written, assignment_cells
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.nats.publish import publish_acked
from runfold.forcing import force_stop
from support.broker import ANSWER_TIMEOUT_S
from support.controller import Observer, controller
from support.groups import RUN, asked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.nats.cells import Cells
    from runfold.events.nats.connection import Connection
    from support.broker import BrokerForTest


class _Contested:
    """The assignments of a broker, of which another changes the one that is read, so many times."""

    def __init__(self, cells: Cells, times: int) -> None:
        self._cells = cells
        self.times = times

    async def get(self, key: str) -> Cell | None:
        cell = await self._cells.get(key)
        if cell is not None and self.times:
            self.times -= 1
            await self._cells.put(key, cell.data or b"", expected=cell.sequence)
        return cell

    async def put(self, key: str, data: bytes, *, expected: int) -> Written | Clash:
        return await self._cells.put(key, data, expected=expected)


@pytest.mark.parametrize("beyond", [0, 1])
async def test_an_assignment_that_keeps_changing_is_not_stopped_by_force(
    broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        await observer.submit(asked())
        await observer.assignment(RUN)
    admin = await broker.connect(Role.ADMIN)
    contested = _Contested(assignment_cells(admin), forcing.TRIES_MAX - 1 + beyond)

    def cells(_: Connection) -> _Contested:
        return contested

    async def nobody_decides(*_: object) -> None:
        """As on a broker where no controller holds a lease."""

    monkeypatch.setattr(forcing, "assignment_cells", cells)
    monkeypatch.setattr(forcing, "_check_nobody_decides", nobody_decides)
    if beyond:
        with pytest.raises(UsageError, match="keeps changing: a controller decides for it; use `abort` without --for"):
            await force_stop(admin, RUN, "stuck")
    else:
        assert await force_stop(admin, RUN, "stuck") == "its group was told to stop, outside the log"
    standing = await assignment_cells(admin).get(RUN)
    assert standing is not None
    wanted = msgspec.json.decode(standing.data or b"", type=Assignment).want
    assert (wanted == "stop") == (not beyond)


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_log_that_a_controller_keeps_writing_to_is_not_fenced(
    broker: BrokerForTest, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    observer = Observer(await broker.connect(Role.CLIENT))
    async with controller(broker):
        await observer.submit(asked())
        await observer.assignment(RUN)
    admin = await broker.connect(Role.ADMIN)
    log = JetStreamLog(admin, RUN)
    written = [stored.data async for stored in log.read()]
    left = restoring.FENCE_TRIES_MAX - 1 + beyond

    async def first_another(
        connection: Connection, subject: str, data: bytes, headers: Mapping[str, str], *, timeout_s: float
    ) -> object:
        nonlocal left
        if left:
            left -= 1
            written.append(written[-1])
            await publish_acked(connection, subject, written[-1], timeout_s=ANSWER_TIMEOUT_S)
        return await publish_acked(connection, subject, data, headers, timeout_s=timeout_s)

    monkeypatch.setattr(restoring, "publish_acked", first_another)
    if beyond:
        with pytest.raises(RestoreRefusedError, match=f"a controller keeps writing to the log of {RUN}; nothing was"):
            await restoring._fence(admin, log)
        assert [stored.data async for stored in log.read()] == written
        return
    await restoring._fence(admin, log)
    *before, fence = [stored.data async for stored in log.read()]
    assert before == written
    entry = decode_entry(fence)
    assert (entry.prev, entry.inputs, entry.transitions) == (hash_entry(written[-1]), (), ())
