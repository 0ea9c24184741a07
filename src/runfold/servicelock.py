"""The lock of a service: held by the parent that keeps a data directory's broker running, for as long as it does."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Final

from runfold.errors import ServiceError

if TYPE_CHECKING:
    from pathlib import Path

SERVICE_LOCK: Final = "service.lock"
LOCK_TRIES_MAX_COUNT: Final = 10
LOCK_AGAIN_S: Final = 0.02


def lock_service(data_dir: Path) -> int:
    """Lock a data directory's service and return the descriptor that holds the lock; no child inherits it.

    Raises:
        ServiceError: another parent keeps the broker of this directory running, or is about to; or it cannot be locked.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / SERVICE_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServiceError(f"the data directory {data_dir} cannot be locked: {error}. Nothing was started") from error
    try:
        if not _take(descriptor):
            raise ServiceError(
                f"the data directory {data_dir} is in use: its service runs already (process {_holder(descriptor)}). "
                f"Nothing was started. Use that one, or stop it first."
            )
        # The number is only for the message to those who come later: a full disk keeps nobody from starting.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_kept_running(data_dir: Path) -> bool:
    """Whether there is somebody who keeps the broker of this directory running, and starts it again when it ends."""
    return kept_running_by(data_dir) is not None


def kept_running_by(data_dir: Path) -> str | None:
    """Return the process, as a person is told of it, that keeps the broker of this directory running; None: nobody."""
    try:
        descriptor = os.open(data_dir / SERVICE_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).strip().decode(errors="replace") or "another one"


def _take(descriptor: int) -> bool:
    """Take the lock; False when another has it. Tried more than once: who only looks has it for an instant."""
    for tries_left in reversed(range(LOCK_TRIES_MAX_COUNT)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tries_left:
                sleep(LOCK_AGAIN_S)
        else:
            return True
    return False
