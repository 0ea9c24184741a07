"""A controller's id: its seat, a numbered lock file in the data directory, which it finds again after a restart."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SEATS_MAX: Final = 64
ID_MAX_BYTES: Final = 128
HOST_MAX_COUNT: Final = 48
SEATS_FOLDER: Final = "seats"

_UNFIT: Final = re.compile(r"[^A-Za-z0-9]+")


class NoSeat(Exception):
    """Every seat of the data directory is taken."""


@contextmanager
def seat(data_dir: Path, host: str) -> Iterator[str]:
    """Hold the first free seat and yield its id, `<host>-<slot>`; an id once given to a seat stays the seat's."""
    folder = data_dir / SEATS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for slot in range(SEATS_MAX):
        descriptor = os.open(folder / str(slot), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield _id_of(descriptor, host, slot)
            return
        finally:
            os.close(descriptor)
    raise NoSeat(f"all {SEATS_MAX} seats in {folder} are held by running controllers; nothing was started")


def _id_of(descriptor: int, host: str, slot: int) -> str:
    kept = os.pread(descriptor, ID_MAX_BYTES, 0).decode("utf-8", "replace").strip()
    if kept and not _UNFIT.search(kept.replace("-", "")):
        return kept
    name = _UNFIT.sub("-", host.partition(".")[0]).strip("-")[:HOST_MAX_COUNT] or "controller"
    chosen = f"{name}-{slot}"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{chosen}\n".encode(), 0)
    os.fsync(descriptor)
    return chosen
