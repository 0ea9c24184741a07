"""The supervisor process: connects, serves its pool until it is told to stop, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from runfold.events.nats.connection import connect
from runfold.events.nats.names import Names, Role
from runfold.workers.hatchery import Hatchery, launch_zygote
from runfold.workers.spawner import Spawner
from runfold.workers.supervisor import Supervisor, SupervisorConfig

__all__ = ["SupervisorConfig", "launch_zygote", "serve_supervisor"]

CONNECT_TIMEOUT_S: Final = 30.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOG: Final = logging.getLogger("runfold.workers")


async def serve_supervisor(
    config: SupervisorConfig,
    *,
    zygote: Spawner | None = None,
    ready: Callable[[], None] = lambda: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve a pool until SIGTERM, SIGINT or `stop`; then end its runners, with bounded patience, and all it started.

    `zygote` may be given by who called `launch_zygote` early, so that it imports meanwhile; it is closed here.
    `ready` is called once runs are placed.

    Raises:
        BrokerUnreachable: no broker answered.
        SpawnError: the zygote could not be started.
    """
    stop = stop or asyncio.Event()
    hatchery = Hatchery(zygote if zygote is not None else launch_zygote())
    try:
        with _stopped_by_signals(stop):
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
                await Supervisor(config, connection, hatchery).serve(stop)
            finally:
                await connection.close()
    finally:
        await hatchery.close()


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Generator[None]:
    """Set `stop` on SIGTERM and SIGINT, and leave the handlers as they were found."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
