"""What an operator of a broker of their own needs: `python -m runfold.events.nats permissions | provision`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from runfold.events.nats.api import Api
from runfold.events.nats.connection import connect
from runfold.events.nats.errors import BrokerError
from runfold.events.nats.files import AdminFile
from runfold.events.nats.names import Names, Role
from runfold.events.nats.serverconf import deployed_accounts
from runfold.events.nats.streams import check, provision
from runfold.events.subjects import DEFAULT_NAMESPACE


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m runfold.events.nats", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    permissions = commands.add_parser("permissions", help="print the accounts block of the server's configuration")
    permissions.add_argument("--namespace", default=DEFAULT_NAMESPACE)
    create = commands.add_parser("provision", help="create the streams on an empty store, or check those there")
    create.add_argument("admin_file", type=Path, help='a file with {"url": "nats://admin:PASSWORD@HOST:PORT"}, 0600')
    create.add_argument("--replicas", type=int, default=1, choices=(1, 3, 5))
    create.add_argument("--storage-max-bytes", type=int, default=None, help="room for all streams together")
    given = parser.parse_args(arguments)
    if given.command == "permissions":
        print(deployed_accounts(Names(given.namespace)), end="")
        return 0
    try:
        admin = msgspec.json.decode(given.admin_file.read_bytes(), type=AdminFile)
        asyncio.run(_provision(admin, given.replicas, given.storage_max_bytes))
    except (BrokerError, OSError, msgspec.DecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"the streams of namespace {admin.namespace} are there, with {given.replicas} replica(s)")
    return 0


async def _provision(admin: AdminFile, replicas: int, storage_max_bytes: int | None) -> None:
    names = Names(admin.namespace)
    connection = await connect(admin.url, role=Role.ADMIN, name="provision", names=names)
    try:
        api = Api(connection)
        await provision(api, names, replicas=replicas, storage_max_bytes=storage_max_bytes)
        await check(api, names)
    finally:
        await connection.close()


if __name__ == "__main__":
    sys.exit(main())
