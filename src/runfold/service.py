"""The service under one parent: broker, controller and supervisor started side by side, tended, stopped in order."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from runfold.brokerhealth import broker_trouble
from runfold.children import Child, Children
from runfold.errors import ServiceError, StreamsLostError
from runfold.events.nats.api import Api
from runfold.events.nats.broker import Broker, start_broker
from runfold.events.nats.connection import connect
from runfold.events.nats.errors import BrokerError, BrokerStartFailed, StreamMismatch, StreamsMissing
from runfold.events.nats.files import CONNECTION_FILE, ConnectionFile, says, write_connection
from runfold.events.nats.names import Names, Role
from runfold.events.nats.settings import LOOPBACK
from runfold.events.nats.streams import provision
from runfold.events.pools import LOCAL_POOL
from runfold.locate import STORAGE_FOLDER, Address
from runfold.restarts import Backoff, Restarts
from runfold.servicelock import lock_service
from runfold.serving import ControllerPlan, SupervisorPlan
from runfold.workers.together import until_one_ends

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from runfold.early import Early
    from runfold.workers.pools.ray import RayConfig

BROKER_POLL_S: Final = 0.1
HEALTH_EVERY_S: Final = 2.0
ROOM_MIN_BYTES: Final = 8 * 1024**2
"""What must be free on the disk before a broker that could not write is worth starting again."""

SUPERVISOR_PATIENCE_S: Final = 30.0
CONTROLLER_PATIENCE_S: Final = 5.0
BROKER_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start: where it keeps its files, and the pool of this machine.

    `storage_dir` is where runs that name no storage keep their checkpoints; by default among the other files. With a
    `nodes_count` the machine shows so many nodes with `slots` each, as if each were a machine of its own. `labels` are
    those of nodes, by which jobs choose. `ray`: the pool is not this machine's, but a Ray cluster's. `listen`
    is the address of this machine at which others reach the broker; by default nobody does.
    """

    data_dir: Path
    namespace: str
    slots: int
    node: str = "local"
    pool: str = LOCAL_POOL
    once: bool = False
    controllers_count: int = 1
    storage_dir: Path | None = None
    nodes_count: int = 1
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    ray: RayConfig | None = None
    listen: str | None = None

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [self.node] if self.nodes_count == 1 else [f"{self.node}-{k}" for k in range(self.nodes_count)]


class Service:
    """Broker, controllers, supervisor. Whoever starts it tends and stops it; `say` hears what a person should know."""

    def __init__(self, plan: Plan, say: Callable[[str], None], early: Early | None = None) -> None:
        self._plan = plan
        self._say = say
        self._children = early.children if early is not None else Children(plan.data_dir, plan.controllers_count)
        self._supervisor = self._children.supervisor
        self._broker: Broker | None = early.broker if early is not None else None
        self._stopping = False
        self._lock: int | None = None
        self._told: ConnectionFile | None = None  # what the connection file says
        self._unwritten = False
        self._restarts = Restarts(say, gives_up=plan.once)

    @property
    def address(self) -> Address:
        """Where a client connects."""
        return Address(self._running_broker().url(Role.CLIENT), self._plan.namespace, local=True)

    @property
    def pids(self) -> dict[str, int]:
        """The process ids by role."""
        return {
            "broker": self._running_broker().pid,
            **{controller.name: controller.pid for controller in self._children.controllers},
            "supervisor": self._supervisor.pid,
        }

    @property
    def server(self) -> str:
        """The broker's address, without credentials."""
        return self._running_broker().server

    async def start(self) -> None:
        """Start everything. On an error nothing is left running.

        Raises:
            ServiceError: a part did not start; the message holds the end of its log. Or the service runs already.
        """
        try:
            self._lock = lock_service(self._plan.data_dir)
            # The children load what they need while the broker starts.
            if self._broker is None:
                self._children.start()
                self._spawn_broker()
            await self._provision()
            controllers = map(self._configure_controller, self._children.controllers)
            await asyncio.gather(*controllers, self._configure_supervisor(self._supervisor))
        except BaseException:
            await self.stop()
            raise
        self._write_connection_file()

    async def tend(self) -> None:
        """Start again what dies, until cancelled.

        Raises:
            ServiceError: the broker lost what it kept; of a one-shot run, something died too often.
        """
        tending = [
            asyncio.ensure_future(self._tend_broker()),
            *(
                asyncio.ensure_future(self._tend_child(controller, self._configure_controller))
                for controller in self._children.controllers
            ),
            asyncio.ensure_future(self._tend_child(self._supervisor, self._configure_supervisor)),
        ]
        await until_one_ends(tending)

    async def stop(self, *, keep_store: bool = True) -> None:
        """Stop everything with bounded patience: the supervisor with its ranks, the controller, the broker.

        Without `keep_store` nobody will read the store again, and the broker is not given time to close it.
        """
        try:
            await self.stop_children(in_order=keep_store)
        finally:
            if self._broker is not None:
                await self._broker.stop_async(BROKER_PATIENCE_S if keep_store else 0.0)
                self._broker = None

    async def stop_children(self, *, in_order: bool = False) -> None:
        """Stop supervisor and controllers, and no longer start again what ends."""
        self._stopping = True
        self._unlock()  # from here on nobody starts the broker again: it is not worth waiting for
        await self._children.stop(SUPERVISOR_PATIENCE_S, CONTROLLER_PATIENCE_S, in_order=in_order)

    def hurry(self) -> None:
        """Stop without waiting for what runs may save yet: ranks that are at work lose what they have not saved."""
        self._children.supervisor.hurry()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _running_broker(self) -> Broker:
        if self._broker is None:
            raise ServiceError("the broker is not running")
        return self._broker

    def _spawn_broker(self) -> None:
        plan = self._plan
        try:
            # Not in a thread: the kernel ends the broker with the thread that started it.
            self._broker = start_broker(
                plan.data_dir,
                namespace=plan.namespace,
                host=plan.listen or LOOPBACK,
                die_with_parent=True,
                others=self._other_pids(),
            )
        except BrokerStartFailed as error:
            raise ServiceError(str(error)) from error
        except OSError as error:
            raise ServiceError(f"the broker was not started: {error}") from error

    async def _provision(self) -> None:
        plan, broker = self._plan, self._running_broker()
        try:
            admin = await connect(
                broker.url(Role.ADMIN), role=Role.ADMIN, name="runfold provisioning", names=Names(plan.namespace)
            )
            try:
                await provision(
                    Api(admin),
                    Names(plan.namespace),
                    storage_max_bytes=broker.storage_max_bytes,
                    marker=broker.created_marker,
                )
            finally:
                await admin.close()
        except (StreamsMissing, StreamMismatch) as error:
            raise StreamsLostError(str(error)) from error
        except (BrokerError, OSError) as error:
            raise ServiceError(f"the broker was started, but cannot be used: {error}") from error

    async def _configure_controller(self, controller: Child) -> None:
        await controller.configure(
            ControllerPlan(
                url=self._running_broker().url(Role.CONTROLLER),
                namespace=self._plan.namespace,
                data_dir=str(self._plan.data_dir),
                # A one-shot run's controller is nobody's rival: its log need not name this machine.
                host=self._plan.node if self._plan.once else socket.gethostname(),
            )
        )

    async def _configure_supervisor(self, supervisor: Child) -> None:
        first, *others = self._plan.nodes
        await supervisor.configure(
            SupervisorPlan(
                url=self._running_broker().url(Role.WORKER),
                namespace=self._plan.namespace,
                data_dir=str(self._plan.data_dir),
                pool=self._plan.pool,
                node=first,
                slots=self._plan.slots,
                more_nodes=dict.fromkeys(others, self._plan.slots),
                labels=self._plan.labels,
                once=self._plan.once,
                ray=self._plan.ray,
                storage_dir=str(self._plan.storage_dir or self._plan.data_dir / STORAGE_FOLDER),
            )
        )

    def _other_pids(self) -> dict[str, int]:
        """The process ids of all but the broker, this process's among them."""
        children = [*self._children.controllers, self._supervisor]
        return {**{child.name: child.pid for child in children if child.pid}, "up": os.getpid()}

    def _write_connection_file(self) -> None:
        file = self._running_broker().connection_file(self._other_pids())
        try:
            write_connection(self._plan.data_dir, file)
        except OSError as error:
            if not self._unwritten:
                self._say(f"{CONNECTION_FILE} could not be written ({error}): until it is, it may lead nowhere")
            self._unwritten = True
        else:
            self._told, self._unwritten = file, False

    def _keep_connection_file(self) -> None:
        """Write the file anew that leads here, where it was lost or changed, or could not be written before."""
        if self._unwritten:
            self._write_connection_file()
        elif self._told is not None and not says(self._plan.data_dir, self._told):
            self._write_connection_file()
            if not self._unwritten:
                self._say(f"{CONNECTION_FILE} was missing, damaged or another one: it is written anew")

    async def _tend_broker(self) -> None:
        loop = asyncio.get_running_loop()
        backoff, look_at = Backoff(loop.time()), loop.time() + HEALTH_EVERY_S
        trouble: str | None = None
        while True:
            await asyncio.sleep(BROKER_POLL_S)
            broker = self._running_broker()
            code = broker.exit_code()
            if code is None and loop.time() >= look_at:
                trouble = await self._trouble(broker, trouble)
                self._keep_connection_file()
                look_at = loop.time() + HEALTH_EVERY_S
            if code is None and (trouble is None or not _has_room(broker)):
                continue
            what = f"the broker ended unexpectedly ({code})" if code is not None else "the broker cannot store anything"
            await self._restart_broker(what, backoff)
            trouble = None

    async def _trouble(self, broker: Broker, before: str | None) -> str | None:
        """Ask the broker how it is, and say so when it can write no more: it stays so until it is started again."""
        trouble = await broker_trouble(broker.monitor_url)
        if trouble is None or "write error" not in trouble:
            return None
        if trouble != before:
            self._say(
                f"the broker cannot store anything: {trouble}. Nothing acknowledged is lost; make room on the disk"
            )
        return trouble

    async def _restart_broker(self, what: str, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait_s = backoff.ended(loop.time())
            self._restarts.ended(what, loop.time(), wait_s)
            await asyncio.sleep(wait_s)
            await self._running_broker().stop_async(BROKER_PATIENCE_S)
            try:
                self._spawn_broker()
                await self._provision()
            except StreamsLostError:
                raise
            except ServiceError as error:
                what = str(error)
                continue
            self._write_connection_file()
            return

    async def _tend_child(self, child: Child, configure: Callable[[Child], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(loop.time())
        while True:
            await child.wait()
            if self._stopping:
                await asyncio.Event().wait()
            wait_s = backoff.ended(loop.time())
            self._restarts.ended(str(child.ended_early()), loop.time(), wait_s)
            await asyncio.sleep(wait_s)
            child.start()
            try:
                await configure(child)
            except ServiceError:
                continue  # it ended again, at once: told of in the next round
            self._write_connection_file()


def _has_room(broker: Broker) -> bool:
    try:
        return shutil.disk_usage(broker.folder).free >= ROOM_MIN_BYTES
    except OSError:
        return False
