"""The files by which a broker is found, where there is no room for new ones: written over, or left as they are."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from runfold.events.nats import files
from runfold.events.nats.files import (
    CONNECTION_FILE,
    AdminFile,
    ConnectionFile,
    read_admin,
    read_connection,
    tell_where,
    write_connection,
)

if TYPE_CHECKING:
    from pathlib import Path

ADMIN = AdminFile(url="nats://admin:secret@127.0.0.1:4222")


def connection(pid: int = 1, monitor: str = "http://127.0.0.1:1", port: int = 4222) -> ConnectionFile:
    server = f"nats://127.0.0.1:{port}"
    return ConnectionFile(url=server, server=server, monitor=monitor, pids={"broker": pid})


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory on a disk that is full by now."""
    tell_where(tmp_path, connection(), ADMIN)

    def fails(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(files, "write_private_bytes", fails)
    return tmp_path


def test_what_has_changed_is_written_over_what_stands_there(full: Path) -> None:
    size = (full / CONNECTION_FILE).stat().st_size
    newer = connection(4_194_304, "http://127.0.0.1:65535")
    tell_where(full, newer, ADMIN)
    assert (read_connection(full), read_admin(full)) == (newer, ADMIN)
    write_connection(full, connection())
    assert read_connection(full) == connection()
    assert ((full / CONNECTION_FILE).stat().st_size, (full / CONNECTION_FILE).stat().st_mode & 0o777) == (size, 0o600)


def test_what_does_not_fit_is_left_if_it_leads_to_the_same_broker(full: Path) -> None:
    longer = connection(monitor="x" * 1000)
    with pytest.raises(OSError, match="No space left"):
        write_connection(full, longer)
    tell_where(full, longer, ADMIN)
    assert read_connection(full) == connection()


def test_what_leads_nowhere_is_trouble(full: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        tell_where(full, connection(port=4223, monitor="x" * 1000), ADMIN)
    with pytest.raises(OSError, match="No space left"):
        tell_where(full, connection(), AdminFile(url="nats://other"))
    (full / CONNECTION_FILE).unlink()
    with pytest.raises(OSError, match="No space left"):
        tell_where(full, connection(), ADMIN)
