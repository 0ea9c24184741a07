"""The supervisor process: connects, serves its pool until it is told to stop, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final

from runfold.events.nats.connection import connect
from runfold.events.nats.names import Names, Role
from runfold.workers.hatchery import Hatchery, launch_zygote
from runfold.workers.pools.machine import MachinePool
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
    word: a SIGTERM comes from who will take this machine back, and is told to the runs.

    `zygote` may be given by who called `launch_zygote` early, so that it imports meanwhile; it is closed here.
    `ready` is called once runs are placed.

    Raises:
        BrokerUnreachable: no broker answered.
        SpawnError: the zygote could not be started.
    """
    stop, orphaned, reclaimed = stop or asyncio.Event(), orphaned or asyncio.Event(), asyncio.Event()
    hatchery = Hatchery(zygote if zygote is not None else launch_zygote())
    try:
        with _heard_signals({signal.SIGINT: stop, signal.SIGTERM: reclaimed}):
            warming = asyncio.ensure_future(hatchery.warm())
            try:
                connection = await connect(
                    config.url,
                    role=Role.WORKER,
                    name=f"supervisor {config.pool}",
                    names=Names(config.namespace),
                    connect_timeout_s=CONNECT_TIMEOUT_S,
                )
            finally:
                await asyncio.wait([warming])
            try:
                warming.result()
                _LOG.info("the supervisor of pool %s has %d slots on %s", config.pool, config.slots, config.node)
                ready()
                nodes = {config.node: config.slots, **config.more_nodes}
                pool = MachinePool(nodes, hatchery, config.pool, config.places_dir, config.labels)
                await Supervisor(config, connection, pool).serve(stop, orphaned, reclaimed)
            finally:
                await connection.close()
    finally:
        await hatchery.close()


@contextmanager
def _heard_signals(events: Mapping[signal.Signals, asyncio.Event]) -> Generator[None]:
    """Set an event on its signal, and leave the handlers as they were found."""
    loop = asyncio.get_running_loop()
    for number, event in events.items():
        loop.add_signal_handler(number, event.set)
    try:
        yield
    finally:
        for number in events:
            loop.remove_signal_handler(number)
