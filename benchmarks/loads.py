"""Loads: how much one controller bears."""

import asyncio
import time
from dataclasses import dataclass

import takeovers
from fakes import FakePool, FakeRun

from runfold.client import Client
from runfold.events.config import ScalingConfig
from runfold.events.entry import decode_entry
from runfold.events.job import Job
from runfold.events.nats.broker import Broker
from runfold.events.nats.connection import Connection, connect
from runfold.events.nats.consume import Delivered
from runfold.events.nats.names import Role

NAMES = takeovers.NAMES
AT_ONCE = 16
REPORT_EVERY_S = 0.5
WAIT_MAX_S = 300.0


@dataclass(frozen=True)
class Crowd:
    """What a controller did with many runs at once: how long until all were at work and until all were over.

    `cpu` is the share of one core that it took while they trained, `entries_per_s` what it wrote meanwhile.
    """

    at_work_s: float
    over_s: float
    cpu: float
    entries_per_s: float


async def submit(client: Client, runs: list[str], workers: int) -> None:
    """Publish a job for each of these runs."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(run: str) -> None:
        async with gate:
            scaling = ScalingConfig(num_workers=workers)
            await client.submit(
                Job(id=run, entrypoint="examples.digits:train", scaling=scaling, pool=takeovers.BENCH_POOL)
            )

    await asyncio.gather(*map(one, runs))


async def workers_of(started: Broker) -> Connection:
    """A connection that speaks as supervisors and runners do."""
    return await connect(started.url(Role.WORKER), role=Role.WORKER, name="bench workers", names=NAMES)


async def all_at_work(pool: FakePool, count: int) -> list[FakeRun]:
    """Wait until so many runs train."""
    async with asyncio.timeout(WAIT_MAX_S):
        while len(pool.runs) < count:
            await asyncio.sleep(0.01)
        runs = list(pool.runs.values())
        for run in runs:
            await run.at_work.wait()
    return runs


async def crowd(count: int, train_s: float) -> Crowd:
    """So many runs of two ranks at once, each rank reporting twice a second."""
    entries = 0

    def take(_: Delivered) -> None:
        nonlocal entries
        entries += 1

    async with takeovers.broker() as (started, client), takeovers.controllers(started, 1) as (controller,):
        workers = await workers_of(started)
        pool = FakePool(workers, {"node-a": 2}, takeovers.BENCH_POOL)
        pool.start()
        try:
            async with client.following(NAMES.log, [NAMES.subjects.logs()], take):
                began = time.monotonic()
                await submit(client, [f"crowd-{k}" for k in range(count)], 2)
                runs = await all_at_work(pool, count)
                at_work_s = time.monotonic() - began
                before, cpu_s, until = entries, controller.cpu_s(), time.monotonic() + train_s
                started_at = time.monotonic()
                while time.monotonic() < until:
                    turn = time.monotonic()
                    await asyncio.gather(*(run.report() for run in runs))
                    await asyncio.sleep(max(0.0, REPORT_EVERY_S - (time.monotonic() - turn)))
                trained_s = time.monotonic() - started_at
                cpu = (controller.cpu_s() - cpu_s) / trained_s
                written = (entries - before) / trained_s
                await asyncio.gather(*(run.finish() for run in runs))
                async with asyncio.timeout(WAIT_MAX_S):
                    for run in runs:
                        await run.gone.wait()
                over_s = time.monotonic() - began
        finally:
            await pool.close()
            await workers.close()
    return Crowd(at_work_s, over_s, cpu, written)


async def beating(runs_count: int, nodes_count: int, ranks_each: int, listen_s: float) -> float:
    """The share of one core that a controller takes for ranks that only beat, once a second."""
    nodes = {f"node-{k}": ranks_each for k in range(nodes_count)}
    async with takeovers.broker() as (started, client), takeovers.controllers(started, 1) as (controller,):
        workers = await workers_of(started)
        pool = FakePool(workers, nodes, takeovers.BENCH_POOL)
        pool.start()
        try:
            await submit(client, [f"beat-{k}" for k in range(runs_count)], nodes_count * ranks_each)
            runs = await all_at_work(pool, runs_count)
            await asyncio.sleep(3.0)
            cpu_s, began = controller.cpu_s(), time.monotonic()
            while time.monotonic() - began < listen_s:
                turn = time.monotonic()
                for run in runs:
                    await run.beat()
                    await asyncio.sleep(max(0.0, 1.0 / len(runs) - 0.005))
                await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - turn)))
            return (controller.cpu_s() - cpu_s) / (time.monotonic() - began)
        finally:
            await pool.close()
            await workers.close()


async def submissions(count: int) -> float:
    """From the first of so many submissions until entry 0 of the last one stands, in seconds."""
    accepted: set[str] = set()

    def take(message: Delivered) -> None:
        entry = decode_entry(message.data)
        if entry.n == 0:
            accepted.add(entry.run)

    async with takeovers.broker() as (started, client), takeovers.controllers(started, 1):
        async with client.following(NAMES.log, [NAMES.subjects.logs()], take):
            began = time.monotonic()
            await submit(client, [f"submitted-{k}" for k in range(count)], 2)
            async with asyncio.timeout(WAIT_MAX_S):
                while len(accepted) < count:
                    await asyncio.sleep(0.01)
            return time.monotonic() - began
