"""Whether somebody keeps the broker of a data directory running: one parent at a time, until it ends or stops."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from runfold import servicelock
from runfold.errors import ServiceError
from runfold.servicelock import (
    LOCK_AGAIN_S,
    LOCK_TRIES_MAX_COUNT,
    SERVICE_LOCK,
    is_kept_running,
    lock_service,
)

if TYPE_CHECKING:
    from pathlib import Path

UNTIL_TOLD = "import sys; print('here', flush=True); sys.stdin.read()"


def test_a_service_runs_for_as_long_as_its_parent_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(servicelock, "sleep", slept.append)
    assert not is_kept_running(tmp_path), "it was never started"
    lock = lock_service(tmp_path)
    assert is_kept_running(tmp_path)
    with pytest.raises(ServiceError, match=rf"is in use: its service runs already \(process {os.getpid()}\)"):
        lock_service(tmp_path)
    assert slept == [LOCK_AGAIN_S] * (LOCK_TRIES_MAX_COUNT - 1), "it was tried so often"
    os.close(lock)
    assert not is_kept_running(tmp_path)
    os.close(lock_service(tmp_path))


def test_children_do_not_hold_it(tmp_path: Path) -> None:
    lock = lock_service(tmp_path)
    # Descriptors are left open for the child: what it does not inherit, it does not because of how the lock was opened.
    words, pipe = [sys.executable, "-c", UNTIL_TOLD], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, close_fds=False) as child:
        # It is told of as started before it has let go of what it does not inherit.
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        os.close(lock)
        assert not is_kept_running(tmp_path)
        child.communicate()


def test_who_only_looks_keeps_nobody_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / SERVICE_LOCK).touch()
    looking = os.open(tmp_path / SERVICE_LOCK, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    waited = threading.Event()

    def sleep(_: float) -> None:
        if not waited.is_set():
            os.close(looking)
        waited.set()

    monkeypatch.setattr(servicelock, "sleep", sleep)
    os.close(lock_service(tmp_path))
    assert waited.is_set()
