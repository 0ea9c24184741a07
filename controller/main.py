"""The controller process: connects, takes its runs over, hosts runs until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from runfold.controller.config import ControllerConfig
from runfold.controller.host import Host, Setting
from runfold.controller.intake import Intake
from runfold.controller.leases import Heir, Keeper, NameTaken
from runfold.controller.links import Links
from runfold.controller.policies import DEFAULT
from runfold.controller.seat import seat
from runfold.controller.seed import Identity
from runfold.controller.wiring import BrokerPorts
from runfold.events.conclusions import Decider
from runfold.events.nats.connection import PENDING_MAX_BYTES, PENDING_NONE, Connection, connect
from runfold.events.nats.names import Names, Role

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


async def serve(
    config: ControllerConfig, *, ready: Callable[[], None] = lambda: None, stop: asyncio.Event | None = None
) -> None:
    """Host runs until SIGTERM, SIGINT or `stop`; then end in order: runs go on, and are taken over at the next start.

    `ready` is called once jobs are taken. Raises `BrokerUnreachable` when no broker answers, `NoSeat` when every
    seat of the data directory is taken, `NameTaken` when another controller works under this one's name.
    """
    stop = stop or asyncio.Event()
    names = Names(config.namespace)
    async with AsyncExitStack() as opened:
        controller = opened.enter_context(seat(config.data_dir, config.host))
        opened.enter_context(_stopped_by_signals(stop))

        async def link(what: str, pending_max_bytes: int = PENDING_MAX_BYTES) -> Connection:
            connection = await connect(
                config.url,
                role=Role.CONTROLLER,
                name=f"{controller} {what}",
                names=names,
                pending_max_bytes=pending_max_bytes,
            )
            opened.push_async_callback(connection.close)
            return connection

        appends, hears = await link("appends", PENDING_NONE), await link("hears")
        ports = BrokerPorts(appends, hears, await link("lease", PENDING_NONE), await link("beats"))
        opened.push_async_callback(ports.close)
        setting = Setting(
            ports=ports,
            me=Identity(controller=controller, decider=decider()),
            subjects=names.subjects,
            monotonic=time.monotonic,
            at=time_of_day,
            real_path=Links().real,
        )
        _log.info("controller %s hosts runs of %s", controller, appends.server)
        await host_runs(setting, config.peer_variables, ready=ready, stop=stop)
    _log.info("controller %s has stopped", controller)


async def host_runs(
    setting: Setting, environment: tuple[str, ...] = (), *, ready: Callable[[], None], stop: asyncio.Event
) -> None:
    """Host runs over any ports until `stop`; then let others have them at once. Raises `NameTaken`."""
    host = Host(setting)
    intake = Intake(host, setting, environment)
    lease = setting.ports.lease(setting.me.controller)
    keeper = Keeper(lease, setting.me.controller, setting.monotonic)
    heir = Heir(host, lease, keeper, setting.monotonic)

    async def take_jobs() -> None:
        await host.ready.wait()
        await keeper.held.wait()
        ready()
        await intake.serve()

    async with asyncio.TaskGroup() as owner:
        keeping = owner.create_task(keeper.serve(stop), name="renew the lease")
        working = [
            owner.create_task(take_jobs(), name="take jobs"),
            owner.create_task(heir.serve(), name="look for runs without a controller"),
        ]
        hosting = owner.create_task(host.serve(stop), name="host runs")
        await stop.wait()
        for task in working:
            task.cancel()
        await hosting
        keeping.cancel()
    await keeper.release()
    if keeper.taken:
        raise NameTaken(f"another controller works under the name {setting.me.controller}")


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
