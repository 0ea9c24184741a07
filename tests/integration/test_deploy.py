"""The files of `deploy/` on real servers: permissions from one source, one node, three nodes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from runfold.events.entry import hash_entry
from runfold.events.log import Appended, LogUnavailable
from runfold.events.nats.api import Api
from runfold.events.nats.broker import find_nats_server
from runfold.events.nats.connection import connect
from runfold.events.nats.errors import BrokerError
from runfold.events.nats.files import AdminFile
from runfold.events.nats.log import JetStreamLog
from runfold.events.nats.names import Names, Role
from runfold.events.nats.serverconf import deployed_accounts
from runfold.events.nats.settings import choose_port
from runfold.events.nats.streams import check, provision
from support.broker import ANSWER_TIMEOUT_S
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).parents[2] / "deploy"
PASSWORDS = {f"RUNFOLD_{role.value.upper()}_PASSWORD": f"rf_{role.value}_secret" for role in Role}
ENVIRONMENT = {**os.environ, **PASSWORDS, "RUNFOLD_ROUTE_PASSWORD": "rf_route_secret"}
ROUTES = {f"RUNFOLD_ROUTE_{node}": f"nats-route://route:rf_route_secret@nats-{node}:6222" for node in (1, 2, 3)}


def url(role: Role, port: int) -> str:
    """Return the address of a user on loopback."""
    return f"nats://{role.value}:{PASSWORDS[f'RUNFOLD_{role.value.upper()}_PASSWORD']}@127.0.0.1:{port}"


def free_ports(count: int) -> list[int]:
    """Return ports that are free, and that no connection is given meanwhile."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(choose_port())
    return list(ports)


@contextmanager
def servers(*configs: Path, routes: dict[str, str]) -> Iterator[None]:
    """Run nats-servers, and stop them."""
    processes = [
        subprocess.Popen([find_nats_server(), "-c", config], env={**ENVIRONMENT, **routes}, stderr=subprocess.DEVNULL)
        for config in configs
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(ANSWER_TIMEOUT_S)


def test_permissions_file_is_the_rendered_one() -> None:
    assert (DEPLOY / "permissions.conf").read_text() == deployed_accounts(Names())


@pytest.mark.parametrize("name", ["nats.conf", "nats-cluster/n1.conf", "nats-cluster/n2.conf", "nats-cluster/n3.conf"])
def test_each_configuration_is_valid(name: str) -> None:
    checked = subprocess.run(
        [find_nats_server(), "-t", "-c", DEPLOY / name],
        env={**ENVIRONMENT, **ROUTES},
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def on_loopback(folder: Path, file: str, port: int, route_port: int) -> None:
    """Copy the deployment and move one file's addresses and store to this machine and folder."""
    shutil.copytree(DEPLOY, folder)
    path = folder / file
    text = path.read_text()
    for old, new in (
        ("0.0.0.0:4222", f"127.0.0.1:{port}"),
        ("0.0.0.0:6222", f"127.0.0.1:{route_port}"),
        ("127.0.0.1:8222", "127.0.0.1:-1"),
        ("/var/lib/runfold/nats", str(folder / "store")),
    ):
        text = text.replace(old, new)
    path.write_text(text)


async def test_one_node_is_prepared_by_the_documented_command(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    folder = tmp_path / "deploy"
    on_loopback(folder, "nats.conf", port, 0)
    admin_file = tmp_path / "admin.json"
    admin_file.write_bytes(msgspec.json.encode(AdminFile(url=url(Role.ADMIN, port))))
    with servers(folder / "nats.conf", routes={}):
        client = await connect(url(Role.CLIENT, port), role=Role.CLIENT, name="t", connect_timeout_s=ANSWER_TIMEOUT_S)
        command = [sys.executable, "-m", "runfold.events.nats", "provision", str(admin_file)]
        for _ in range(2):
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False
            )
            assert done.returncode == 0, done.stderr
        await check(Api(client), Names())
        await client.close()


async def test_three_nodes_hold_streams_and_append(tmp_path: Path) -> None:
    chosen = free_ports(6)
    ports, route_ports = chosen[:3], chosen[3:]
    configs: list[Path] = []
    for node, port, route_port in zip((1, 2, 3), ports, route_ports, strict=True):
        on_loopback(tmp_path / f"n{node}", "nats-cluster/common.conf", port, route_port)
        configs.append(tmp_path / f"n{node}" / "nats-cluster" / f"n{node}.conf")
    routes = {
        f"RUNFOLD_ROUTE_{node}": f"nats-route://route:rf_route_secret@127.0.0.1:{route_port}"
        for node, route_port in zip((1, 2, 3), route_ports, strict=True)
    }
    with servers(*configs, routes=routes):
        admin = await connect(url(Role.ADMIN, ports[0]), role=Role.ADMIN, name="t", connect_timeout_s=ANSWER_TIMEOUT_S)
        api = Api(admin)

        async def provisioned() -> bool:
            try:
                await provision(api, Names(), replicas=3, storage_max_bytes=1 << 30)
            except BrokerError:
                return False  # the nodes have no leader yet
            return True

        await until(provisioned, patience_s=120)
        log = JetStreamLog(admin, "r", append_timeout_s=ANSWER_TIMEOUT_S)

        async def appended(n: int) -> bool:
            data = b"entry %d" % n
            try:
                outcome = await log.append(data, n=n, digest=hash_entry(data), prev="", last_sequence=n)
            except LogUnavailable:
                return False  # a node that stood still is no leader any more: the same call is made again
            assert outcome == Appended(sequence=n + 1)
            return True

        for number in range(3):
            await until(partial(appended, number))

        async def read() -> bool:
            try:
                return [stored.data async for stored in log.read()] == [b"entry 0", b"entry 1", b"entry 2"]
            except LogUnavailable:
                return False

        await until(read)
        await check(api, Names())
        await admin.close()
