"""The service under one parent: broker, controller and supervisor started side by side, tended, stopped in order."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.children import Child, Children
from runfold.errors import ServiceError
from runfold.events.nats.api import Api
from runfold.events.nats.broker import Broker, start_broker
from runfold.events.nats.connection import connect
from runfold.events.nats.errors import BrokerError, BrokerStartFailed
from runfold.events.nats.files import CONNECTION_FILE, write_private
from runfold.events.nats.names import Names, Role
from runfold.events.nats.streams import provision
from runfold.locate import Address
from runfold.serving import ControllerPlan, SupervisorPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

BROKER_POLL_S: Final = 0.25
RESTARTS_MAX_COUNT: Final = 5
RESTARTS_WINDOW_S: Final = 60.0
RESTART_WAIT_S: Final = 0.2
SUPERVISOR_PATIENCE_S: Final = 20.0
CONTROLLER_PATIENCE_S: Final = 5.0
BROKER_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start: where it keeps its files, and the pool of this machine."""

    data_dir: Path
    namespace: str
    slots: int
    node: str = "local"
    pool: str = "local"
    once: bool = False


class Service:
    """The three processes. Whoever starts it tends it and stops it; `say` is told what a person should know."""

    def __init__(self, plan: Plan, say: Callable[[str], None], early: Children | None = None) -> None:
        self._plan = plan
        self._say = say
        self._children = early or Children(plan.data_dir)
        self._controller, self._supervisor = self._children.controller, self._children.supervisor
        self._broker: Broker | None = None
        self._stopping = False
        self._restarts: deque[float] = deque(maxlen=RESTARTS_MAX_COUNT)

    @property
    def address(self) -> Address:
        """Where a client connects."""
        return Address(self._running_broker().url(Role.CLIENT), self._plan.namespace, local=True)

    @property
    def pids(self) -> dict[str, int]:
        """The process ids by role."""
        return {
            "broker": self._running_broker().pid,
            "controller": self._controller.pid,
            "supervisor": self._supervisor.pid,
        }

    @property
    def server(self) -> str:
        """The broker's address, without credentials."""
        return self._running_broker().server

    async def start(self) -> None:
        """Start everything. On an error nothing is left running.

        Raises:
            ServiceError: a part did not start; the message holds the end of its log.
        """
        try:
            # The children load what they need while the broker starts.
            if not self._supervisor.pid:
                self._children.start()
            await self._start_broker()
            await asyncio.gather(self._configure_controller(), self._configure_supervisor())
        except BaseException:
            await self.stop()
            raise
        self._write_connection_file()

    async def tend(self) -> None:
        """Start again what dies, until cancelled.

        Raises:
            ServiceError: something died too often.
        """
        tending = [
            asyncio.ensure_future(self._tend_broker()),
            asyncio.ensure_future(self._tend_child(self._controller, self._configure_controller)),
            asyncio.ensure_future(self._tend_child(self._supervisor, self._configure_supervisor)),
        ]
        try:
            done, _ = await asyncio.wait(tending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tending:
                task.cancel()
            await asyncio.gather(*tending, return_exceptions=True)

    async def stop(self, *, keep_store: bool = True) -> None:
        """Stop everything with bounded patience: the supervisor with its ranks, the controller, the broker.

        Without `keep_store` nobody will read the store again, and the broker is not given time to close it.
        """
        await self.stop_children(in_order=keep_store)
        if self._broker is not None:
            await self._broker.stop_async(BROKER_PATIENCE_S if keep_store else 0.0)
            self._broker = None

    async def stop_children(self, *, in_order: bool = False) -> None:
        """Stop supervisor and controller, and no longer start again what ends."""
        self._stopping = True
        await self._children.stop(SUPERVISOR_PATIENCE_S, CONTROLLER_PATIENCE_S, in_order=in_order)

    def _running_broker(self) -> Broker:
        if self._broker is None:
            raise ServiceError("the broker is not running")
        return self._broker

    async def _start_broker(self) -> None:
        plan = self._plan
        try:
            # Not in a thread: the kernel ends the broker with the thread that started it.
            self._broker = broker = start_broker(plan.data_dir, namespace=plan.namespace, die_with_parent=True)
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
        except BrokerStartFailed as error:
            raise ServiceError(str(error)) from error
        except BrokerError as error:
            raise ServiceError(f"the broker was started, but cannot be used: {error}") from error

    async def _configure_controller(self) -> None:
        await self._controller.configure(
            ControllerPlan(
                url=self._running_broker().url(Role.CONTROLLER),
                namespace=self._plan.namespace,
                data_dir=str(self._plan.data_dir),
                # A one-shot run's controller is nobody's rival: its log need not name this machine.
                host=self._plan.node if self._plan.once else socket.gethostname(),
            )
        )

    async def _configure_supervisor(self) -> None:
        await self._supervisor.configure(
            SupervisorPlan(
                url=self._running_broker().url(Role.WORKER),
                namespace=self._plan.namespace,
                data_dir=str(self._plan.data_dir),
                pool=self._plan.pool,
                node=self._plan.node,
                slots=self._plan.slots,
            )
        )

    def _write_connection_file(self) -> None:
        import os

        file = self._running_broker().connection_file()
        pids = {**self.pids, "up": os.getpid()}
        write_private(self._plan.data_dir / CONNECTION_FILE, msgspec.structs.replace(file, pids=pids))

    async def _tend_broker(self) -> None:
        while True:
            await asyncio.sleep(BROKER_POLL_S)
            code = self._running_broker().exit_code()
            if code is None:
                continue
            self._count_restart(f"the broker ended unexpectedly ({code})")
            await self._start_broker()
            self._write_connection_file()

    async def _tend_child(self, child: Child, configure: Callable[[], Awaitable[None]]) -> None:
        while True:
            await child.wait()
            if self._stopping:
                await asyncio.Event().wait()
            error = child.ended_early()
            self._count_restart(str(error))
            await asyncio.sleep(RESTART_WAIT_S)
            child.start()
            await configure()
            self._write_connection_file()

    def _count_restart(self, what: str) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._restarts) == RESTARTS_MAX_COUNT and now - self._restarts[0] < RESTARTS_WINDOW_S:
            raise ServiceError(
                f"{what}\nIt is the {RESTARTS_MAX_COUNT + 1}th end within {RESTARTS_WINDOW_S:g} s; giving up."
            )
        self._restarts.append(now)
        first, _, details = what.partition("\n")
        self._say(f"{first}; starting it again\n{details}" if details else f"{first}; starting it again")
