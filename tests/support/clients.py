"""A client of a service that commands under test have started."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from runfold.client import open_client
from runfold.locate import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runfold.client import Client
    from support.commands import Commands


@asynccontextmanager
async def client_of(user: Commands) -> AsyncIterator[Client]:
    """A client of the service."""
    connection = json.loads((user.data / "connection.json").read_text(encoding="utf-8"))
    async with open_client(Address(connection["url"], connection["namespace"], local=True)) as client:
        yield client
