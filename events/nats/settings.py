"""What a data directory chooses once for its broker: names, passwords, room on the disk, and its port."""

from __future__ import annotations

import errno
import secrets
import shutil
import socket
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events.nats.errors import BrokerStartFailed, PortTaken
from runfold.events.nats.files import write_private, write_private_bytes
from runfold.events.nats.names import Role

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK: Final = "127.0.0.1"
# Below the ports that systems hand to outgoing connections: one of those could hold ours after a restart,
# and a client that retries could even connect to itself.
PORT_LAST: Final = 65_535
PORT_MIN: Final = 20_000
PORT_MAX: Final = 32_767
PORT_TRIES_MAX: Final = 64
STORAGE_MAX_BYTES: Final = 16 * 1024**3
STORAGE_MIN_BYTES: Final = 64 * 1024**2
PASSWORD_BYTES: Final = 24


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was chosen when the broker was first started in a directory. `host` is where it listens this time."""

    name: str
    namespace: str
    storage_max_bytes: int
    passwords: dict[str, str]
    host: str = LOOPBACK

    def password(self, role: Role) -> str:
        """Return a user's password."""
        return self.passwords[role.value]


def load_or_choose(folder: Path, namespace: str) -> Settings:
    """Read the settings of a broker's folder, or choose and keep them."""
    path = folder / "settings.json"
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=Settings)
    except FileNotFoundError:
        settings = Settings(
            name=f"{namespace}-{secrets.token_hex(4)}",
            namespace=namespace,
            # Half of what is free: a full disk stops JetStream until it is restarted, a full stream only refuses.
            storage_max_bytes=max(min(STORAGE_MAX_BYTES, shutil.disk_usage(folder).free // 2), STORAGE_MIN_BYTES),
            passwords={role.value: secrets.token_urlsafe(PASSWORD_BYTES) for role in Role},
        )
        write_private(path, settings)
    except msgspec.DecodeError as error:
        raise BrokerStartFailed(f"{path} is damaged ({error}). Nothing was started; put it back from a copy") from error
    if settings.namespace != namespace:
        raise BrokerStartFailed(
            f"the broker in {folder} was made for namespace {settings.namespace!r}, not {namespace!r}. "
            f"Nothing was started; name that one, or another data directory"
        )
    return settings


def port_file(folder: Path) -> Path:
    """Return the file that keeps the port."""
    return folder / "port"


def kept_port(folder: Path) -> int | None:
    """Return the port this folder keeps; None before its first start. Raise PortTaken when it is in use."""
    path = port_file(folder)
    try:
        port = int(path.read_text())
        if not 0 < port <= PORT_LAST:
            raise ValueError(port)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BrokerStartFailed(f"{path} holds no port number; remove it to have one chosen") from error
    if not is_free(port):
        raise PortTaken(port, _holder(port), str(path))
    return port


def choose_port() -> int:
    """Return a free port of the loopback address."""
    for _ in range(PORT_TRIES_MAX):
        port = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN + 1)
        if is_free(port):
            return port
    raise BrokerStartFailed(f"no free port found among {PORT_TRIES_MAX} tried from {PORT_MIN} to {PORT_MAX}")


def keep_port(folder: Path, port: int) -> None:
    """Keep a port for the starts to come."""
    write_private_bytes(port_file(folder), f"{port}\n".encode())


def is_free(port: int) -> bool:
    """Say whether a server could listen on a port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As nats-server does: connections of its former self that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True


def _holder(port: int) -> str:
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return "another process"
    for connection in connections:
        if connection.laddr and connection.laddr[1] == port and connection.status == psutil.CONN_LISTEN:
            return f"process {connection.pid}" if connection.pid is not None else "another user's process"
    return "another process"
