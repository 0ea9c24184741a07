"""Take-over: how long runs are without a controller when theirs is killed."""

import asyncio
import re
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from runfold.children import Child
from runfold.client import Client, open_client
from runfold.events.config import ScalingConfig
from runfold.events.entry import decode_entry
from runfold.events.job import Job
from runfold.events.nats.api import Api
from runfold.events.nats.broker import Broker, start_broker
from runfold.events.nats.connection import connect
from runfold.events.nats.consume import Delivered
from runfold.events.nats.names import Names, Role
from runfold.events.nats.streams import provision
from runfold.events.transitions import ControllerChanged
from runfold.locate import Address
from runfold.service import Plan, Service
from runfold.serving import ControllerPlan

NAMES = Names()
BENCH_POOL = "bench"
SUBMITTED_AT_ONCE = 16
SETTLED_S = 2.5
WAIT_MAX_S = 120.0


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[Broker, Client]]:
    """A broker of its own with all streams, and a client of it."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        started = start_broker(Path(folder), die_with_parent=True)
        try:
            admin = await connect(started.url(Role.ADMIN), role=Role.ADMIN, name="bench admin", names=NAMES)
            await provision(Api(admin), NAMES, storage_max_bytes=started.storage_max_bytes)
            await admin.close()
            async with open_client(Address(started.url(Role.CLIENT), NAMES.namespace, local=True)) as client:
                yield started, client
        finally:
            started.stop()


class Controller:
    """A controller process, started again under the same seat by `start`."""

    def __init__(self, started: Broker, name: str) -> None:
        self.child = Child("controller", started.folder.parent, name)
        self._url = started.url(Role.CONTROLLER)
        self._data_dir = str(started.folder.parent)

    async def start(self) -> None:
        """Start it, and wait until it works."""
        before = len(self._seats())
        self.child.start()
        await self.child.configure(
            ControllerPlan(url=self._url, namespace=NAMES.namespace, data_dir=self._data_dir, host="bench")
        )
        async with asyncio.timeout(WAIT_MAX_S):
            while len(self._seats()) <= before:
                await asyncio.sleep(0.01)

    @property
    def seat(self) -> str:
        """The name under which it works."""
        return self._seats()[-1]

    def _seats(self) -> list[str]:
        try:
            text = self.child.log_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return re.findall(r"controller (\S+) hosts runs", text)

    async def kill(self) -> float:
        """Kill it; return when."""
        at = time.monotonic()
        psutil.Process(self.child.pid).send_signal(signal.SIGKILL)
        await self.child.wait()
        return at

    def cpu_s(self) -> float:
        """The seconds that it has worked."""
        times = psutil.Process(self.child.pid).cpu_times()
        return float(times.user + times.system)


@asynccontextmanager
async def controllers(started: Broker, count: int) -> AsyncIterator[list[Controller]]:
    """So many controllers for as long as the block lasts."""
    running = [Controller(started, f"controller-{k}") for k in range(count)]
    try:
        for each in running:
            await each.start()
        yield running
    finally:
        for each in running:
            await each.child.stop(5.0)


@dataclass
class Seen:
    """Which controller each run has by its log, and when that was first seen."""

    holders: dict[str, tuple[int, str, float]] = field(default_factory=dict)

    def take(self, message: Delivered) -> None:
        """Look at an entry."""
        entry = decode_entry(message.data)
        for item in entry.transitions:
            if isinstance(item, ControllerChanged):
                self.holders[entry.run] = (item.epoch, item.controller, time.monotonic())

    async def until(self, count: int, epoch: int) -> None:
        """Wait until so many runs have reached an epoch."""
        async with asyncio.timeout(WAIT_MAX_S):
            while sum(one[0] >= epoch for one in self.holders.values()) < count:
                await asyncio.sleep(0.005)


async def submit(client: Client, runs: list[str]) -> None:
    """Publish a job for each of these runs, for a pool that nobody serves."""
    gate = asyncio.Semaphore(SUBMITTED_AT_ONCE)

    async def one(run: str) -> None:
        async with gate:
            await client.submit(
                Job(
                    id=run,
                    entrypoint="examples.digits:train",
                    scaling=ScalingConfig(num_workers=2),
                    pool=BENCH_POOL,
                )
            )

    await asyncio.gather(*map(one, runs))


async def one_by_one(count: int) -> list[float]:
    """Kill the controller that has a run, again and again; from the kill to the entry of the next one, in seconds."""
    took: list[float] = []
    async with broker() as (started, client), controllers(started, 2) as running:
        seen = Seen()
        async with client.following(NAMES.log, [NAMES.subjects.logs()], seen.take):
            await submit(client, ["one"])
            await seen.until(1, 1)
            for epoch in range(2, count + 2):
                await asyncio.sleep(SETTLED_S)
                holder = next(each for each in running if each.seat == seen.holders["one"][1])
                killed = await holder.kill()
                await seen.until(1, epoch)
                took.append(seen.holders["one"][2] - killed)
                await holder.start()
    return took


async def alone(count: int) -> list[float]:
    """Kill the only controller of a service, again and again; from the kill until it has its run once more."""
    took: list[float] = []
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        service = Service(Plan(Path(folder), NAMES.namespace, slots=1), lambda _: None)
        await service.start()
        tending = asyncio.create_task(service.tend())
        try:
            seen = Seen()
            async with open_client(service.address) as client:
                async with client.following(NAMES.log, [NAMES.subjects.logs()], seen.take):
                    await submit(client, ["one"])
                    await seen.until(1, 1)
                    for epoch in range(2, count + 2):
                        await asyncio.sleep(SETTLED_S)
                        killed = time.monotonic()
                        psutil.Process(service.pids["controller"]).kill()
                        await seen.until(1, epoch)
                        took.append(seen.holders["one"][2] - killed)
        finally:
            tending.cancel()
            await asyncio.gather(tending, return_exceptions=True)
            await service.stop()
    return took


async def all_at_once(count: int) -> list[float]:
    """Kill the controller that has so many runs; from the kill to each run's next one, in seconds."""
    async with broker() as (started, client), controllers(started, 1) as running:
        seen = Seen()
        async with client.following(NAMES.log, [NAMES.subjects.logs()], seen.take):
            await submit(client, [f"run-{k}" for k in range(count)])
            await seen.until(count, 1)
            async with controllers(started, 1):
                await asyncio.sleep(2 * SETTLED_S)
                killed = await running[0].kill()
                await seen.until(count, 2)
    return [at - killed for _, _, at in seen.holders.values()]
