"""The embedded broker as a real process: starting, the lock on its store, its port, its files, its end."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runfold.events.nats import broker as broker_module
from runfold.events.nats.broker import start_broker
from runfold.events.nats.connection import connect
from runfold.events.nats.errors import BrokerStartFailed, BrokerUnreachable, PortTaken, StoreLocked
from runfold.events.nats.files import read_admin, read_connection, without_credentials
from runfold.events.nats.names import Role

DEADLINE_S = 60.0


def test_starts_answers_and_stops(tmp_path: Path) -> None:
    broker = start_broker(tmp_path)
    assert broker.exit_code() is None
    assert broker.stop() == 0
    assert broker.exit_code() == 0


def test_listens_where_other_machines_reach_it(tmp_path: Path) -> None:
    broker = start_broker(tmp_path, host="127.0.0.2")
    try:
        assert broker.url(Role.WORKER).endswith(f"@127.0.0.2:{broker.port}")
        told = read_connection(tmp_path)
        assert told is not None
        assert "127.0.0.2" in told.url
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port)).close()
    finally:
        broker.stop()


def test_second_server_on_one_store_is_refused_and_named(tmp_path: Path) -> None:
    broker = start_broker(tmp_path)
    try:
        with pytest.raises(StoreLocked) as refused:
            start_broker(tmp_path)
        assert refused.value.pid == broker.pid
        assert str(broker.pid) in str(refused.value)
        assert broker.exit_code() is None
    finally:
        broker.stop()
    start_broker(tmp_path).stop()


def test_one_that_nobody_could_find_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(broker_module, "tell_where", fails)
        with pytest.raises(OSError, match="No space left"):
            start_broker(tmp_path)
    start_broker(tmp_path).stop()


def test_where_it_is_watched_is_found_without_its_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "PROBE_TIMEOUT_S", 0.5)
    (tmp_path / "nowhere").mkdir()
    broker = start_broker(tmp_path)
    try:
        assert broker_module._monitor_url(tmp_path / "nowhere", broker.pid, broker.port) == broker.monitor_url
    finally:
        broker.stop()


def test_lock_outlives_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from runfold.events.nats.broker import start_broker\n"
        "print(start_broker(pathlib.Path(sys.argv[1])).pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, timeout=DEADLINE_S, check=False
    )
    assert parent.returncode == -9
    pid = int(parent.stdout)
    try:
        with pytest.raises(StoreLocked) as refused:
            start_broker(tmp_path)
        assert refused.value.pid == pid
    finally:
        os.kill(pid, 9)


def test_dies_with_its_parent_when_asked(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from runfold.events.nats.broker import start_broker\n"
        "print(start_broker(pathlib.Path(sys.argv[1]), die_with_parent=True).pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, timeout=DEADLINE_S, check=False
    )
    lock = os.open(tmp_path / "broker" / "store" / ".runfold-lock", os.O_RDWR)
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)  # granted once the server is gone
    finally:
        os.close(lock)


def test_keeps_port_and_passwords_over_a_restart(tmp_path: Path) -> None:
    first = start_broker(tmp_path)
    first.stop()
    second = start_broker(tmp_path)
    second.stop()
    assert second.url(Role.CLIENT) == first.url(Role.CLIENT)
    assert second.url(Role.ADMIN) == first.url(Role.ADMIN)


def test_two_directories_have_their_own_port_and_passwords(tmp_path: Path) -> None:
    one, other = start_broker(tmp_path / "one"), start_broker(tmp_path / "other")
    one.stop()
    other.stop()
    assert one.port != other.port
    assert one.settings.passwords != other.settings.passwords


def test_kept_port_in_use_by_a_stranger_is_said(tmp_path: Path) -> None:
    broker = start_broker(tmp_path)
    broker.stop()
    with socket.create_server(("127.0.0.1", broker.port)):
        with pytest.raises(PortTaken, match=f"process {os.getpid()}"):
            start_broker(tmp_path)
    start_broker(tmp_path).stop()


@pytest.mark.parametrize("data", [b"", b"x", b"\xff", b"-1", b"0", b"65536", b"9" * 5000])
def test_a_kept_port_that_is_none_is_said(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    (folder / "port").write_bytes(data)
    with pytest.raises(BrokerStartFailed, match="holds no port number"):
        start_broker(tmp_path)


def test_killed_server_starts_again(tmp_path: Path) -> None:
    broker = start_broker(tmp_path)
    broker.process.kill()
    assert broker.process.wait(DEADLINE_S) == -9
    assert broker.exit_code() == -9
    again = start_broker(tmp_path)
    assert again.port == broker.port
    again.stop()


def test_frozen_server_is_stopped_all_the_same(tmp_path: Path) -> None:
    broker = start_broker(tmp_path)
    os.kill(broker.pid, 19)
    assert broker.stop(timeout_s=0.2) == -9


def test_files_hold_what_each_role_needs_and_are_private(tmp_path: Path) -> None:
    broker = start_broker(tmp_path)
    broker.stop()
    connection, admin = read_connection(tmp_path), read_admin(tmp_path)
    assert connection is not None
    assert admin is not None
    assert connection.url == broker.url(Role.CLIENT)
    assert connection.url_of(Role.CONTROLLER) == broker.url(Role.CONTROLLER)
    assert connection.url_of(Role.WORKER) == broker.url(Role.WORKER)
    assert admin.url == broker.url(Role.ADMIN)
    assert connection.pids == {"broker": broker.pid}
    assert broker.settings.password(Role.ADMIN) not in (tmp_path / "connection.json").read_text()
    with pytest.raises(BrokerUnreachable):
        connection.url_of(Role.ADMIN)
    private = [tmp_path / "connection.json", tmp_path / "admin.json"]
    private += [tmp_path / "broker" / name for name in ("settings.json", "nats-server.conf")]
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_no_service_was_ever_here(tmp_path: Path) -> None:
    assert read_connection(tmp_path) is None
    assert read_admin(tmp_path) is None


def test_another_namespace_in_one_directory_is_refused(tmp_path: Path) -> None:
    start_broker(tmp_path).stop()
    with pytest.raises(BrokerStartFailed, match="runfold"):
        start_broker(tmp_path, namespace="other")


def test_what_the_server_said_is_in_the_error(tmp_path: Path) -> None:
    start_broker(tmp_path).stop()
    log = tmp_path / "broker" / "nats-server.log"
    log.unlink()
    log.mkdir()
    for _ in range(2):  # the lock went with the server that did not come up
        with pytest.raises(BrokerStartFailed, match="is a directory"):
            start_broker(tmp_path)


async def test_unreachable_says_where_but_no_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(BrokerUnreachable) as error:
            await connect(f"nats://client:secret@127.0.0.1:{port}", role=Role.CLIENT, name="t", connect_timeout_s=0.5)
    assert f"127.0.0.1:{port}" in str(error.value)
    assert "secret" not in str(error.value)


async def test_wrong_password_is_said_at_once(tmp_path: Path) -> None:
    broker = start_broker(tmp_path)
    try:
        with pytest.raises(BrokerUnreachable, match="refuses the credentials of client"):
            await connect(
                f"nats://client:wrong@127.0.0.1:{broker.port}",
                role=Role.CLIENT,
                name="t",
                connect_timeout_s=DEADLINE_S,
            )
    finally:
        await broker.stop_async()


def test_url_is_shown_without_credentials() -> None:
    assert without_credentials("nats://client:a@b@host:1") == "nats://host:1"
    assert without_credentials("nats://host:1") == "nats://host:1"
