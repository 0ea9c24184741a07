"""`connection.json` where it is lost, damaged or no file: what is waited for, and what is told of the service."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from runfold import connectionfile
from runfold.connectionfile import CONNECTION_AWAITED_S, LOOK_EVERY_S, connection_of
from runfold.errors import BrokerAwayError, UnreachableError
from runfold.events.nats.files import (
    CONNECTION_FILE,
    AdminFile,
    ConnectionFile,
    read_admin,
    says,
    tell_where,
    write_connection,
)
from runfold.locate import find, listens
from runfold.servicelock import kept_running_by, lock_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FILE = ConnectionFile(url="nats://127.0.0.1:1", server="nats://127.0.0.1:1")
DAMAGED = (b"", b"{", b"[]", b"null", b'{"url": 1, "server": 2}', b"\xff\xfe")


class Clock:
    """The clock of who waits: it goes on by what is slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.meanwhile: Callable[[], object] = lambda: None
        monkeypatch.setattr(connectionfile, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(connectionfile, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """The data directory of a service that runs: of this process."""
    lock = lock_service(tmp_path)
    try:
        yield tmp_path
    finally:
        os.close(lock)


def lose(data_dir: Path, content: bytes | None) -> str:
    """Leave `connection.json` as a command may find it, and say what it is."""
    if content is not None:
        (data_dir / CONNECTION_FILE).write_bytes(content)
    return "missing" if content is None else "damaged"


@pytest.mark.parametrize("content", [None, *DAMAGED])
def test_who_needs_the_file_of_a_service_that_runs_waits_until_it_is_written(
    running: Path, clock: Clock, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    what = lose(running, content)
    looks = 0

    def written() -> None:
        nonlocal looks
        if (looks := looks + 1) == 3:
            write_connection(running, FILE)

    clock.meanwhile = written
    assert connection_of(running) == FILE
    said = f"(process {os.getpid()}), but its {CONNECTION_FILE} is {what}: waiting until the service has written it"
    assert capsys.readouterr().err == f"the service of {running} runs {said}\n", "once"


@pytest.mark.parametrize("content", [None, *DAMAGED])
def test_who_waited_for_it_in_vain_is_told_that_the_service_runs(
    running: Path, clock: Clock, content: bytes | None
) -> None:
    what = lose(running, content)
    where = find(running)
    for ask in (where.service, where.required_service, lambda: list(where.services()), lambda: where.stopped):
        began_s = clock.now_s
        with pytest.raises(
            BrokerAwayError, match=rf"runs \(process {os.getpid()}\), but its .* is {what}: it was waited"
        ):
            ask()
        assert clock.now_s - began_s == pytest.approx(CONNECTION_AWAITED_S, abs=2 * LOOK_EVERY_S)


def test_a_directory_in_its_place_is_said_at_once(running: Path, clock: Clock) -> None:
    (running / CONNECTION_FILE).mkdir()
    with pytest.raises(BrokerAwayError, match=r"runs .* is a directory\nMove that away"):
        connection_of(running)
    assert clock.now_s == 0


def test_a_service_that_ends_meanwhile_is_waited_for_no_longer(tmp_path: Path, clock: Clock) -> None:
    lock = lock_service(tmp_path)
    clock.meanwhile = lambda: os.close(lock)
    assert connection_of(tmp_path) is None
    assert kept_running_by(tmp_path) is None


async def test_ctrl_c_ends_the_wait(running: Path, clock: Clock) -> None:
    async def ask() -> None:
        task = asyncio.current_task()
        assert task is not None
        clock.meanwhile = task.cancel
        connection_of(running)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(ask())
    assert clock.now_s == LOOK_EVERY_S


@pytest.mark.parametrize("content", DAMAGED)
def test_where_no_service_runs_a_damaged_file_is_said_with_what_helps(
    tmp_path: Path, clock: Clock, content: bytes
) -> None:
    lose(tmp_path, content)
    with pytest.raises(UnreachableError, match=r"is damaged .* written anew when the service starts") as told:
        connection_of(tmp_path)
    assert not isinstance(told.value, BrokerAwayError)
    tell_where(tmp_path, FILE, AdminFile(url="nats://admin@127.0.0.1:1"))
    assert (connection_of(tmp_path), clock.now_s) == (FILE, 0)


def test_a_directory_in_its_place_keeps_a_service_from_being_found_and_both_say_so(tmp_path: Path) -> None:
    (tmp_path / CONNECTION_FILE).mkdir()
    with pytest.raises(UnreachableError, match=rf"{CONNECTION_FILE} is a directory\. Move it away, and start"):
        connection_of(tmp_path)
    with pytest.raises(
        IsADirectoryError, match=rf"a directory is in its place; move that away: '.*/{CONNECTION_FILE}'"
    ):
        tell_where(tmp_path, FILE, AdminFile(url="nats://admin@127.0.0.1:1"))
    assert not says(tmp_path, FILE)
    assert [path.name for path in tmp_path.iterdir()] == [CONNECTION_FILE]


@pytest.mark.parametrize("content", DAMAGED)
def test_what_tells_the_administrator_is_written_anew_where_it_is_damaged(tmp_path: Path, content: bytes) -> None:
    admin = AdminFile(url="nats://admin@127.0.0.1:1")
    (tmp_path / "admin.json").write_bytes(content)
    tell_where(tmp_path, FILE, admin)
    assert read_admin(tmp_path) == admin


@pytest.mark.parametrize("server", ["nats://127.0.0.1:99999", "nats://127.0.0.1:port", "nats://[", ""])
def test_nothing_listens_at_what_is_no_address(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> object:
        raise ConnectionRefusedError

    monkeypatch.setattr("runfold.locate.socket.create_connection", refused)
    assert not listens(server)
