"""Controllers as processes: killed, stopped, told to stop and woken, while a run is trained."""

from __future__ import annotations

import signal
from itertools import groupby, pairwise

import pytest

from runfold.events.entry import Entry, decode_entry, hash_entry
from runfold.events.facts import Reported
from runfold.events.fold import fold_all
from runfold.events.nats.cells import owner_cells
from runfold.events.nats.consume import Delivered, Follower
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Role
from runfold.events.transitions import AttemptStarted, ControllerChanged, RunAccepted
from runfold.replay.audit import audit
from runfold.replay.source import read_log
from runfold.replay.verify import verify
from support.broker import BrokerForTest
from support.controller import Observer
from support.controllers import ControllerProcess, controllers
from support.groups import RUN, Group, asked
from support.waiting import until


async def watching(broker: BrokerForTest) -> tuple[Observer, Group]:
    observer = Observer(await broker.connect(Role.CLIENT))
    return observer, Group(await broker.connect(Role.WORKER), observer)


async def holder(observer: Observer, running: list[ControllerProcess]) -> tuple[ControllerProcess, int]:
    """The process that has the run, and the epoch by which it has it."""
    now = await observer.status(RUN)
    return next(each for each in running if each.seat == now.controller), now.epoch


async def reports(group: Group, first: int, count: int) -> None:
    for index in range(first, first + count):
        await group.runner.say(group.runner.next(Reported, rank=0, life=1, index=index, metrics={"step": index}))


async def settle(broker: BrokerForTest, observer: Observer) -> list[Entry]:
    """Return the entries of the run, once sure that everything in them happened once and would be decided again."""
    owners = owner_cells(await broker.connect(Role.CONTROLLER))

    async def freed() -> bool:
        cell = await owners.get(RUN)
        return cell is not None and cell.data is None

    await until(freed)
    log = [stored.data async for stored in JetStreamLog(observer.connection, RUN).read()]
    entries = [decode_entry(data) for data in log]
    assert [entry.prev for entry in entries[1:]] == [hash_entry(data) for data in log[:-1]]
    transitions = [item for entry in entries for item in entry.transitions]
    assert len([item for item in transitions if isinstance(item, RunAccepted)]) == 1
    assert len([item for item in transitions if isinstance(item, AttemptStarted)]) == 1
    assert all(after.t >= before.t for before, after in pairwise(entries))
    history = await read_log(JetStreamLog(observer.connection, RUN), RUN)
    assert audit(history).clean
    assert verify(history).outcome == "agrees"
    return entries


def epochs(entries: list[Entry]) -> list[str]:
    return [item.controller for entry in entries for item in entry.transitions if isinstance(item, ControllerChanged)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_another_controller_has_the_run_of_one_that_ends(broker: BrokerForTest, number: signal.Signals) -> None:
    observer, group = await watching(broker)
    async with controllers(broker, 2) as running:
        await observer.submit(asked())
        await observer.assignment(RUN)
        await group.trains()
        await reports(group, 0, 5)
        first, epoch = await holder(observer, running)
        first.signal(number)
        await reports(group, 5, 5)
        # Its lease may have lapsed already, when it had no CPU for a second.
        await observer.status(RUN, lambda now: now.epoch > epoch)
        await reports(group, 10, 5)
        await group.finishes()
        assert await first.ended() == (-9 if number == signal.SIGKILL else 0)
        entries = await settle(broker, observer)
    assert fold_all(entries).reports == 15
    assert len(set(epochs(entries))) == 2


async def test_a_controller_alone_takes_its_runs_up_again_when_it_is_started_again(broker: BrokerForTest) -> None:
    observer, group = await watching(broker)
    async with controllers(broker, 1) as running:
        await observer.submit(asked())
        await observer.assignment(RUN)
        await group.trains()
        running[0].signal(signal.SIGKILL)
        await running[0].ended()
        await reports(group, 0, 5)
        await running[0].start()
        await observer.status(RUN, lambda now: now.epoch == 2)
        await group.finishes()
        entries = await settle(broker, observer)
    assert fold_all(entries).reports == 5
    assert epochs(entries) == ["ctl-0", "ctl-0"]


class _Stopper:
    """Stops a process in the moment in which an entry is seen: it was stored, and what follows of it is not shown."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.process: ControllerProcess | None = None
        self.begun = False
        self.reports_count = 0
        self.stopped = False

    def see(self, message: Delivered) -> None:
        """Look at an entry."""
        entry = decode_entry(message.data)
        self.begun = True
        self.reports_count += sum(isinstance(item, Reported) for item in entry.inputs)
        if not self.stopped and self.process is not None and entry.n == self.n:
            self.process.signal(signal.SIGSTOP)
            self.stopped = True


@pytest.mark.parametrize("n", [0, 2, 4, 6])
async def test_a_controller_stopped_behind_an_append_is_fenced_when_it_wakes(broker: BrokerForTest, n: int) -> None:
    observer, group = await watching(broker)
    async with controllers(broker, 1) as running:
        stopper = _Stopper(n)
        stopper.process = running[0]
        follower = Follower(observer.connection, broker.names.log, [broker.names.subjects.log(RUN)], stopper.see)
        follower.start()
        await observer.submit(asked())
        # Nobody else may take the job.
        await until(lambda: stopper.begun)
        async with controllers(broker, 1, first=1):
            await observer.assignment(RUN)
            await group.trains()
            # An entry may hold many inputs: one is said when the one before stands, until there are enough entries.
            for index in range(n + 1):
                await reports(group, index, 1)
                await until(lambda told=index + 1: stopper.stopped or stopper.reports_count == told)  # type: ignore[misc]  # bound at once
            assert stopper.stopped
            await group.finishes()
            entries = await settle(broker, observer)
            final = await observer.assignment(RUN), await observer.status(RUN)
            running[0].signal(signal.SIGCONT)
            await until(lambda: "let go" in running[0].said)
            about = [line for line in running[0].said.splitlines() if RUN in line and " INFO " not in line]
            assert len(about) == 1
            assert (await observer.assignment(RUN), await observer.status(RUN)) == final
            assert await settle(broker, observer) == entries
        await follower.close()
    assert [name for name, _ in groupby(epochs(entries))] == ["ctl-0", "ctl-1"]
