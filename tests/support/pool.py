"""A supervisor in the test's own process, over a real broker, with real runners and ranks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil
import pytest

from runfold.events.nats.names import Role
from runfold.workers import supervisor
from runfold.workers.main import SupervisorConfig, serve_supervisor
from support.scripted import Asking
from support.waiting import PATIENCE_S, until, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.broker import BrokerForTest

STOP_PATIENCE_S = 60.0
SETTLE_PATIENCE_S = 30.0


class PoolForTest(Asking):
    """One supervisor and the runs it is told about."""

    def __init__(
        self, broker: BrokerForTest, folder: Path, slots: int, more_nodes: dict[str, int] | None = None
    ) -> None:
        super().__init__(broker, folder)
        self.slots = slots
        self.more_nodes = more_nodes or {}
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._patience = pytest.MonkeyPatch()

    async def start(self) -> None:
        """Start the supervisor and wait until it places runs."""
        # What it says last is not dropped because the broker was busy for a moment.
        self._patience.setattr(supervisor, "SETTLE_TIMEOUT_S", SETTLE_PATIENCE_S)
        ready = asyncio.Event()
        self._stop = asyncio.Event()
        config = SupervisorConfig(
            url=self.broker.running.url(Role.WORKER),
            slots=self.slots,
            base_dir=str(self.folder),
            more_nodes=self.more_nodes,
        )
        self._serving = asyncio.create_task(serve_supervisor(config, ready=ready.set, stop=self._stop))
        waiting = asyncio.create_task(ready.wait())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait({self._serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self) -> None:
        """Stop it in order."""
        self._stop.set()
        if self._serving is not None:
            await within(STOP_PATIENCE_S, self._serving)
            self._serving = None

    async def ended(self) -> None:
        """Wait until the supervisor has ended by itself, and raise what it ended of."""
        serving, self._serving = self._serving, None
        if serving is not None:
            await within(STOP_PATIENCE_S, serving)

    def close(self) -> None:
        """Leave the product's own patience as it was."""
        self._patience.undo()

    def processes(self) -> list[psutil.Process]:
        """Everything below this process but the broker."""
        mine = psutil.Process().children(recursive=True)
        return [one for one in mine if one.is_running() and one.pid != self.broker.running.pid]

    def named(self, name: str) -> list[psutil.Process]:
        """The processes below this one that bear a name."""
        found = []
        for process in self.processes():
            try:
                if process.name() == name:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    async def gone(self, name: str) -> None:
        """Wait until no process bears a name."""
        await until(lambda: not self.named(name))


@pytest.fixture
async def pool(broker: BrokerForTest, tmp_path: Path) -> AsyncIterator[PoolForTest]:
    """A supervisor with four slots; nothing of it is left after the test."""
    async for made in _serving(PoolForTest(broker, tmp_path, slots=4)):
        yield made


@pytest.fixture
async def wide_pool(broker: BrokerForTest, tmp_path: Path) -> AsyncIterator[PoolForTest]:
    """A supervisor with two nodes of two slots each."""
    async for made in _serving(PoolForTest(broker, tmp_path, slots=2, more_nodes={"other": 2})):
        yield made


async def _serving(made: PoolForTest) -> AsyncIterator[PoolForTest]:
    try:
        await made.start()
        yield made
    finally:
        for run in made.runs:
            run.stop(grace_s=0.5)
        left = made.processes()
        try:
            await made.stop()
        finally:
            for run in made.runs:
                await run.close()
            made.close()
    assert not [process for process in left if process.is_running()]
