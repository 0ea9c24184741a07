"""The connection of those who may change what is stored: `gc`, `restore` and `abort --force`, by `admin.json` alone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from runfold.errors import BrokerAwayError, UnreachableError, UsageError
from runfold.events.nats.errors import BrokerAway, BrokerError, BrokerUnreachable
from runfold.events.nats.files import ADMIN_FILE, read_admin
from runfold.events.nats.names import Names, Role
from runfold.patience import Patience, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runfold.events.nats.connection import Connection
    from runfold.locate import Where


@asynccontextmanager
async def open_admin(where: Where) -> AsyncIterator[Connection]:
    """Connect as admin for as long as the block lasts.

    Raises:
        UsageError: this data directory has no `admin.json`.
        BrokerAwayError: the service runs, and its broker was waited for in vain.
        UnreachableError: no broker answered, or it went away meanwhile.
    """
    try:
        admin = read_admin(where.data_dir)
    except BrokerUnreachable as error:
        raise UnreachableError(str(error)) from error
    except PermissionError as error:
        raise UsageError(f"{where.data_dir / ADMIN_FILE} may be read by the service's user alone") from error
    if admin is None:
        raise UsageError(
            f"there is no {ADMIN_FILE} in {where.data_dir}\nThis is for the administrator of a service: name its data "
            f"directory by --data. With a broker of your own, write its admin's url there."
        )
    try:
        names, patience = Names(admin.namespace), Patience(where.data_dir)
        connection = await connected(admin.url, Role.ADMIN, "runfold admin", names, patience)
    except BrokerAway as error:
        raise BrokerAwayError(str(error)) from error
    except BrokerUnreachable as error:
        raise UnreachableError(str(error)) from error
    try:
        yield connection
    except BrokerError as error:
        raise UnreachableError(f"the broker at {connection.server} did not answer: {error}") from error
    finally:
        await connection.close()
