"""Controllers as processes of their own, as `up` starts them: to be killed, stopped and woken."""

from __future__ import annotations

import os
import re
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runfold.children import Child
from runfold.events.nats.names import Role
from runfold.serving import ControllerPlan
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.broker import BrokerForTest

STOP_PATIENCE_S = 30.0


class ControllerProcess:
    """One controller process; its seat is the first free one of the broker's directory."""

    def __init__(self, broker: BrokerForTest, name: str) -> None:
        self.name = name
        self._broker = broker
        self._child = Child("controller", broker.data_dir, name)

    async def start(self) -> None:
        """Start it; it takes jobs when it says so in its log."""
        self._child.start()
        await self._child.configure(
            ControllerPlan(
                url=self._broker.running.url(Role.CONTROLLER),
                namespace=self._broker.names.namespace,
                data_dir=str(self._broker.data_dir),
                host="ctl",
            )
        )

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._child.pid, number)

    async def ended(self) -> int:
        """Wait until it has ended, and return how."""
        return await self._child.wait()

    async def close(self) -> None:
        """End it, whatever it does."""
        if self._child.pid and self._child.exit_code is None:
            with suppress(ProcessLookupError):  # it has ended since
                self.signal(signal.SIGKILL)
            await self._child.wait()
        await self._child.stop(STOP_PATIENCE_S)

    @property
    def seat(self) -> str | None:
        """The id under which it works, once it does."""
        found = re.search(r"controller (\S+) hosts runs", self.said)
        return found[1] if found else None

    @property
    def said(self) -> str:
        """Everything it wrote."""
        return Path(self._child.log_file).read_text(encoding="utf-8")


@asynccontextmanager
async def controllers(broker: BrokerForTest, count: int, first: int = 0) -> AsyncIterator[list[ControllerProcess]]:
    """Run so many controllers for a while."""
    running = [ControllerProcess(broker, f"controller-{k}") for k in range(first, first + count)]
    try:
        for each in running:
            await each.start()
        await until(lambda: all(each.seat for each in running))
        yield running
    finally:
        for each in running:
            await each.close()
