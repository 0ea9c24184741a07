"""Statuses are not synced: what a broker that dies has lost of them is shown again, also of runs that are over."""

from __future__ import annotations

from runfold.events.nats.cells import Cells, owner_cells, status_cells
from runfold.events.nats.names import Role
from runfold.events.nats.unsettled import unsettled_runs
from support.broker import BrokerForTest
from support.controller import Observer, controller
from support.groups import RUN, Group, asked
from support.waiting import until


async def test_a_status_is_what_the_log_says_once_a_controller_is_there_again(broker: BrokerForTest) -> None:
    observer = Observer(await broker.connect(Role.CLIENT))
    admin = await broker.connect(Role.ADMIN)
    statuses, owners = status_cells(admin), owner_cells(admin)
    group = Group(await broker.connect(Role.WORKER), observer)
    async with controller(broker):
        await observer.submit(asked())
        await group.trains()
        running = await statuses.get(RUN)
        assert running is not None
        assert await unsettled_runs(admin) == {RUN}
        await group.finishes()
        await until(lambda: _free(owners))
        assert await unsettled_runs(admin) == set()
        count = len(await observer.entries(RUN))
    await statuses.put(RUN, running.data or b"", expected=None)
    assert await unsettled_runs(admin) == {RUN}
    async with controller(broker):
        assert (await observer.status(RUN, lambda now: now.terminal)).head.n == count - 1
        await until(lambda: _free(owners))
    await (await broker.api()).purge_all(broker.names.stream_of(broker.names.status_bucket), statuses.subject(RUN))
    assert await unsettled_runs(admin) == {RUN}, "it has an assignment"
    async with controller(broker):
        assert (await observer.status(RUN, lambda now: now.terminal)).epoch == 1
    assert len(await observer.entries(RUN)) == count


async def _free(owners: Cells) -> bool:
    cell = await owners.get(RUN)
    return cell is not None and cell.data is None
