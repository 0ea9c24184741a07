"""The controller process: connects, takes its runs over, hosts runs until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from runfold.controller.config import ControllerConfig
from runfold.controller.host import Host, Setting
from runfold.controller.intake import Intake
from runfold.controller.policies import DEFAULT
from runfold.controller.seat import seat
from runfold.controller.seed import Identity
from runfold.controller.wiring import BrokerPorts
from runfold.events.conclusions import Decider
from runfold.events.nats.connection import PENDING_NONE, connect
from runfold.events.nats.names import Names, Role

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


async def serve(
    config: ControllerConfig, *, ready: Callable[[], None] = lambda: None, stop: asyncio.Event | None = None
) -> None:
    """Host runs until SIGTERM, SIGINT or `stop`; then end in order: runs go on, and are taken over at the next start.

    `ready` is called once jobs are taken. Raises `BrokerUnreachable` when no broker answers, `NoSeat` when every
    seat of the data directory is taken.
    """
    stop = stop or asyncio.Event()
    names = Names(config.namespace)
    with seat(config.data_dir, config.host) as controller, _stopped_by_signals(stop):
        appends = await connect(
            config.url, role=Role.CONTROLLER, name=f"{controller} appends", names=names, pending_max_bytes=PENDING_NONE
        )
        try:
            hears = await connect(config.url, role=Role.CONTROLLER, name=f"{controller} hears", names=names)
            try:
                ports = BrokerPorts(appends, hears)
                setting = Setting(
                    ports=ports,
                    me=Identity(controller=controller, decider=decider()),
                    subjects=names.subjects,
                    monotonic=time.monotonic,
                    at=time_of_day,
                )
                _log.info("controller %s hosts runs of %s", controller, appends.server)
                await host_runs(setting, config.peer_variables, ready=ready, stop=stop)
                await ports.close()
            finally:
                await hears.close()
        finally:
            await appends.close()
    _log.info("controller %s has stopped", controller)


async def host_runs(
    setting: Setting, environment: tuple[str, ...] = (), *, ready: Callable[[], None], stop: asyncio.Event
) -> None:
    """Host runs over any ports until `stop`."""
    host = Host(setting)
    intake = Intake(host, setting, environment)

    async def take_jobs() -> None:
        await host.ready.wait()
        ready()
        await intake.serve()

    async with asyncio.TaskGroup() as owner:
        taking = owner.create_task(take_jobs(), name="take jobs")
        hosting = owner.create_task(host.serve(stop), name="host runs")
        await stop.wait()
        taking.cancel()
        await hosting


def decider() -> Decider:
    """Return what decides here, as the log names it."""
    return Decider(version=version("runfold"), policies=DEFAULT.names)


def time_of_day() -> str:
    """Return the time of day for people: RFC 3339, UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT, and leave the handlers as they were found."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
