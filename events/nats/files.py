"""The files by which a data directory's broker is found: `connection.json` and `admin.json`, both 0600."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from runfold.events.nats.errors import BrokerUnreachable
from runfold.events.nats.names import Role
from runfold.events.subjects import DEFAULT_NAMESPACE

CONNECTION_FILE: Final = "connection.json"
ADMIN_FILE: Final = "admin.json"
CONNECTION_SPARE_BYTES: Final = 128
"""Blanks at its end, so that other ports and process ids fit in where nothing new can be written."""

_T = TypeVar("_T", bound=msgspec.Struct)


class Credentials(msgspec.Struct, frozen=True):
    """A user of the broker."""

    user: str
    password: str


class ConnectionFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `connection.json` says.

    `url` holds the client's credentials; the others' stand by role, for the processes of the service. `monitor` is
    where the broker tells of its health.
    """

    url: str
    server: str
    namespace: str = DEFAULT_NAMESPACE
    monitor: str = ""
    pids: dict[str, int] = {}
    roles: dict[str, Credentials] = {}

    def url_of(self, role: Role) -> str:
        """Return the url by which a role connects; the admin's stands in `admin.json` alone."""
        credentials = self.roles.get(role.value)
        if credentials is None:
            raise BrokerUnreachable(f"{CONNECTION_FILE} has no credentials for {role.value}")
        return with_credentials(self.server, credentials)


class AdminFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `admin.json` says: the url with the rights to create and delete streams."""

    url: str
    namespace: str = DEFAULT_NAMESPACE


def with_credentials(server: str, credentials: Credentials) -> str:
    """Return a server's url with user and password in it (generated passwords need no quoting)."""
    scheme, _, address = server.partition("://")
    return f"{scheme}://{credentials.user}:{credentials.password}@{address}"


def without_credentials(url: str) -> str:
    """Return a url fit to be shown: user and password left out."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def read_connection(data_dir: Path) -> ConnectionFile | None:
    """Read `connection.json`; None when no service was ever started in this directory."""
    return _read(data_dir / CONNECTION_FILE, ConnectionFile)


def read_admin(data_dir: Path) -> AdminFile | None:
    """Read `admin.json`; None when no service was ever started in this directory."""
    return _read(data_dir / ADMIN_FILE, AdminFile)


def tell_where(data_dir: Path, connection: ConnectionFile, admin: AdminFile) -> None:
    """Write the files by which a broker that was just started is found.

    Raises:
        OSError: they cannot be written, and those that stand there lead nowhere. If they lead to it (from its life
            before, which had other process ids), they are left as they are.
    """
    try:
        write_connection(data_dir, connection)
        if _found(data_dir / ADMIN_FILE, AdminFile) != admin:
            write_private(data_dir / ADMIN_FILE, admin)
    except OSError:
        if not _leads_to(data_dir, connection) or _found(data_dir / ADMIN_FILE, AdminFile) != admin:
            raise


def write_connection(data_dir: Path, connection: ConnectionFile) -> None:
    """Write `connection.json`: on a full disk over what stands there, which has room to spare.

    Raises:
        OSError: it cannot be written.
    """
    path, data = data_dir / CONNECTION_FILE, _encoded(connection)
    if path.is_dir():  # to be said by its own name, not by that of what would have replaced it
        raise IsADirectoryError(errno.EISDIR, "a directory is in its place; move that away", str(path))
    try:
        write_private_bytes(path, data.ljust(len(data) + CONNECTION_SPARE_BYTES))
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT} or not path.exists():
            raise
        with path.open("r+b", buffering=0) as file:
            if len(data) > (size := os.fstat(file.fileno()).st_size):
                raise
            file.write(data.ljust(size))
            os.fsync(file.fileno())


def says(data_dir: Path, connection: ConnectionFile) -> bool:
    """Whether `connection.json` stands there and says just this."""
    return _found(data_dir / CONNECTION_FILE, ConnectionFile) == connection


def _leads_to(data_dir: Path, connection: ConnectionFile) -> bool:
    found = _found(data_dir / CONNECTION_FILE, ConnectionFile)
    change = msgspec.structs.replace
    return found is not None and change(found, pids={}, monitor="") == change(connection, pids={}, monitor="")


def write_private(path: Path, document: msgspec.Struct) -> None:
    """Replace a file at once by a document, readable by its owner alone; a reader sees the old or the new."""
    write_private_bytes(path, _encoded(document))


def write_private_bytes(path: Path, data: bytes) -> None:
    """Replace a file at once by bytes, readable by its owner alone, and see them on the disk."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _encoded(document: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise BrokerUnreachable(
            f"{path} is a directory. Move it away, and start the service: the file is written anew"
        ) from error
    except msgspec.DecodeError as error:
        raise BrokerUnreachable(
            f"{path} is damaged ({error}). It is written anew when the service starts: stop it first if it runs"
        ) from error


def _found(path: Path, kind: type[_T]) -> _T | None:
    """Return what a file says; None where there is nothing to be read, for whatever reason."""
    try:
        return _read(path, kind)
    except (BrokerUnreachable, OSError):
        return None
