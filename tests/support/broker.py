"""A real broker for a test: started in its own directory, streams created, connections closed after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from runfold.events.nats.api import Api
from runfold.events.nats.broker import start_broker
from runfold.events.nats.connection import PENDING_MAX_BYTES, Connection, connect
from runfold.events.nats.names import Names, Role
from runfold.events.nats.streams import provision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from runfold.events.nats.broker import Broker

CONNECT_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 30.0
"""How long a test waits for what must happen: a backstop on a busy machine, never a measure."""


class BrokerForTest:
    """The broker of one test. `running` is the server; `kill` and `restart` are for tests of outages."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.names = Names()
        self.running: Broker = start_broker(data_dir, die_with_parent=True)
        self._connections: list[Connection] = []

    async def connect(
        self, role: Role, name: str = "test", *, pending_max_bytes: int = PENDING_MAX_BYTES
    ) -> Connection:
        """Connect as a user; closed when the test ends."""
        connection = await connect(
            self.running.url(role),
            role=role,
            name=name,
            names=self.names,
            pending_max_bytes=pending_max_bytes,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )
        self._connections.append(connection)
        return connection

    async def api(self, role: Role = Role.ADMIN) -> Api:
        """Return the JetStream API as a user."""
        return Api(await self.connect(role))

    async def provision(self) -> None:
        """Create the streams."""
        await provision(
            await self.api(),
            self.names,
            storage_max_bytes=self.running.storage_max_bytes,
            marker=self.running.created_marker,
        )

    def kill(self) -> None:
        """End the server as a power cut of its process would."""
        self.running.process.kill()
        self.running.process.wait(CONNECT_TIMEOUT_S)

    def restart(self) -> None:
        """Start it again on the same store and port."""
        self.running.stop()
        self.running = start_broker(self.data_dir, die_with_parent=True)

    async def close(self) -> None:
        """Close the connections, then stop the server."""
        try:
            for connection in self._connections:
                await connection.close()
        finally:
            self.running.stop()


@pytest_asyncio.fixture
async def bare_broker(tmp_path: Path) -> AsyncIterator[BrokerForTest]:
    """A started broker without streams."""
    started = BrokerForTest(tmp_path / "data")
    try:
        yield started
    finally:
        await started.close()


@pytest_asyncio.fixture
async def broker(bare_broker: BrokerForTest) -> BrokerForTest:
    """A started broker with all streams."""
    await bare_broker.provision()
    return bare_broker
