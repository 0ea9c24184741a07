"""Places on disk: a locked file for each runner, by which a supervisor finds what the one before it has left.

The file says who the runner is, nothing secret. It is locked for as long as the runner lives; a second runner of the
same run on the same node ends at once. Beside it is the socket at which an heir of the supervisor knocks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from runfold.workers.errors import RunfoldError

PLACES_FOLDER: Final = "places"
PLACE_MAX_BYTES: Final = 64 * 1024
LOCK_PATIENCE_S: Final = 0.5
"""Who looks through the places holds each lock for an instant."""
_RETRY_S: Final = 0.02
_FILE: Final = ".json"
_SOCKET: Final = ".sock"


class PlaceTakenError(RunfoldError):
    """Another runner of the run is at work on this node."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A runner: who it is for ever (`pid` and `started` together), and what it holds of its node."""

    v: int = 1
    run: str
    pool: str
    node: str
    source: str
    attempt: int
    pid: int
    started: float | None
    slots: int
    resources: dict[str, float] = {}


_DECODER: Final = msgspec.json.Decoder(Place)


class PlaceLock:
    """A place that this process holds; made by `take`."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def take(cls, folder: Path, place: Place) -> PlaceLock:
        """Lock a place and say who holds it; `PlaceTakenError` when another runner does."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{place.run}.{place.node}{_FILE}"
        fd = _locked_in_time(path)
        if fd is None:
            raise PlaceTakenError(f"{_who(path)} is at work for {place.run} on {place.node}; this one ends")
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode(place), 0)
        return cls(path, fd)

    @property
    def socket_path(self) -> Path:
        """Where an heir knocks."""
        return socket_path(self._path)

    def release(self) -> None:
        """Leave in order: the place's file goes first, so that nobody takes its end for a death."""
        _remove(self._path)
        os.close(self._fd)


def find_places(folder: Path) -> list[tuple[Path, Place]]:
    """Return the places that are held by a runner now; the files of runners that are gone are removed."""
    found: list[tuple[Path, Place]] = []
    for path in sorted(folder.glob(f"*{_FILE}")):
        fd = _locked(path, create=False)
        if fd is not None:
            _remove(path)
            os.close(fd)
        elif (place := _read(path)) is not None:
            found.append((path, place))
    return found


def socket_path(path: Path) -> Path:
    """Return where the heir of a place's supervisor knocks: a short name, since the kernel allows few characters."""
    return path.with_name(hashlib.sha256(path.name.encode()).hexdigest()[:16] + _SOCKET)


def is_held(path: Path) -> bool:
    """Whether a place's file is still there: a runner that leaves in order takes it away."""
    return path.exists()


def _locked_in_time(path: Path) -> int | None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while (fd := _locked(path, create=True)) is None and time.monotonic() < deadline:
        time.sleep(_RETRY_S)
    return fd


def _locked(path: Path, *, create: bool) -> int | None:
    """Return a descriptor that holds the file's lock; None when another does, or there is none."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        if _is_file(path, fd):
            return fd
        # It was removed between the two calls: what is locked is nobody's place any more.
        os.close(fd)


def _is_file(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


def _read(path: Path) -> Place | None:
    try:
        return _DECODER.decode(path.read_bytes()[:PLACE_MAX_BYTES])
    except (OSError, msgspec.DecodeError):
        return None  # it is being written, or was removed: looked at again soon


def _who(path: Path) -> str:
    place = _read(path)
    return "another runner" if place is None else f"the runner {place.pid}"


def _remove(path: Path) -> None:
    socket_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
