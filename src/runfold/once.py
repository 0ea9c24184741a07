"""The directory of a one-shot run, locked while anybody lives in it: one that is free was left by a killed run."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def occupy(folder: Path) -> int:
    """Make a run's directory, and return the descriptor by which it is lived in, until every copy of it is closed.

    Raises:
        FileExistsError: it stands already.
        FileNotFoundError: it was cleared away again while it was made.
    """
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    # Who looks at it in this moment has it for that long only. Where the file system knows no locks on directories
    # (NFS), nobody can tell who lives in one, and none is taken for left.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        folder.stat()
    except FileNotFoundError:
        os.close(descriptor)
        raise
    return descriptor


def is_left(folder: Path) -> bool:
    """Whether a run's directory stands and nobody lives in it."""
    try:
        with taken_over(folder):
            return True
    except OSError:
        return False  # somebody does, or it cannot be told


@contextmanager
def taken_over(folder: Path) -> Iterator[int]:
    """Live in a directory that was left, for as long as the block lasts, or a copy of the descriptor is open.

    Raises:
        BlockingIOError: somebody lives in it.
        FileNotFoundError: it is gone.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)
