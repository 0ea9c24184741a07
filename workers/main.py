"""The supervisor process: connects, serves its pool until it is told to stop, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from runfold.events.nats.connection import Connection, connect
from runfold.events.nats.names import Names, Role
from runfold.workers.hatchery import Hatchery, launch_zygote
from runfold.workers.pools.machine import MachinePool
from runfold.workers.pools.pool import Pool
from runfold.workers.pools.ray import RayConfig
from runfold.workers.spawner import Spawner
from runfold.workers.supervisor import Supervisor, SupervisorConfig

__all__ = ["SupervisorConfig", "launch_zygote", "serve_supervisor"]

CONNECT_TIMEOUT_S: Final = 30.0
_LOG: Final = logging.getLogger("runfold.workers")


async def serve_supervisor(
    config: SupervisorConfig,
    *,
    zygote: Spawner | None = None,
    ready: Callable[[], None] = lambda: None,
    stop: asyncio.Event | None = None,
    orphaned: asyncio.Event | None = None,
) -> None:
    """Serve a pool until SIGINT or `stop`; then end its runners, with bounded patience, and all it started.

    Until `orphaned` as well: then the runners are left to the next supervisor, if `adopt` says so. runfold stops by
    word: a SIGTERM comes from who will take this machine back, and is told to the runs. A SIGINT after the word to stop
    ends the time that runs are given to save.

    `zygote` may be given by who called `launch_zygote` early, so that it imports meanwhile; it is closed here.
    `ready` is called once runs are placed.

    Raises:
        BrokerUnreachable: no broker answered.
        SpawnError: the zygote could not be started.
        RayError: the Ray cluster cannot be used.
    """
    stop, orphaned, reclaimed = stop or asyncio.Event(), orphaned or asyncio.Event(), asyncio.Event()
    hurried = asyncio.Event()

    def interrupted() -> None:
        (hurried if stop.is_set() else stop).set()

    with _heard_signals({signal.SIGINT: interrupted, signal.SIGTERM: reclaimed.set}):
        opened = _ray_pool(config, zygote) if config.ray is not None else _machine_pool(config, zygote)
        async with opened as (pool, connection):
            ready()
            await Supervisor(config, connection, pool).serve(stop, orphaned, reclaimed, hurried)


@asynccontextmanager
async def _machine_pool(config: SupervisorConfig, zygote: Spawner | None) -> AsyncGenerator[tuple[Pool, Connection]]:
    hatchery = Hatchery(zygote if zygote is not None else launch_zygote())
    try:
        warming = asyncio.ensure_future(hatchery.warm())
        try:
            connection = await _connected(config)
        finally:
            await asyncio.wait([warming])
        try:
            warming.result()
            _LOG.info("the supervisor of pool %s has %d slots on %s", config.pool, config.slots, config.node)
            nodes = {config.node: config.slots, **config.more_nodes}
            yield MachinePool(nodes, hatchery, config.pool, config.places_dir, config.labels), connection
        finally:
            await connection.close()
    finally:
        await hatchery.close()


@asynccontextmanager
async def _ray_pool(config: SupervisorConfig, zygote: Spawner | None) -> AsyncGenerator[tuple[Pool, Connection]]:
    # Here alone, so that who has another pool loads none of it.
    from runfold.workers.pools.ray.pool import open_ray_pool

    if zygote is not None:
        await zygote.close()  # every node has its own
    where = config.ray or RayConfig()
    async with open_ray_pool(where, url=config.url, namespace=config.namespace, pool=config.pool) as pool:
        connection = await _connected(config)
        try:
            _LOG.info("the supervisor of pool %s is on a Ray cluster with %s", config.pool, pool.book.nodes)
            yield pool, connection
        finally:
            await connection.close()


async def _connected(config: SupervisorConfig) -> Connection:
    return await connect(
        config.url,
        role=Role.WORKER,
        name=f"supervisor {config.pool}",
        names=Names(config.namespace),
        connect_timeout_s=CONNECT_TIMEOUT_S,
    )


@contextmanager
def _heard_signals(heard: Mapping[signal.Signals, Callable[[], None]]) -> Generator[None]:
    """Hear each signal, and leave the handlers as they were found."""
    loop = asyncio.get_running_loop()
    for number, hear in heard.items():
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
