"""A folder of logs: the exported files and the archives in it and below it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from runfold.replay.errors import CannotRead, NotFound
from runfold.replay.manifest import LAST, SEGMENTS
from runfold.replay.store import Store, is_url, open_store

EXPORT_SUFFIX: Final = ".jsonl"
LOGS_MAX_COUNT: Final = 10_000
FOLDERS_DEEP_MAX_COUNT: Final = 4


def is_folder_of_logs(target: str) -> bool:
    """Say whether a target is a directory that is no archive itself."""
    if is_url(target) or not Path(target).is_dir():
        return False
    return not _is_archive(open_store(target).names(""))


def gather(target: str) -> tuple[str, ...]:
    """Return every exported file and archive in a directory or at a URL, in the order of their names.

    An archive is one log, also when it is the target itself. Raises `NotFound` when there is none.
    """
    found: list[str] = []
    try:
        _look(open_store(target), found, 0)
    except OSError as error:
        raise CannotRead(f"{target}: {error}") from error
    if not found:
        raise NotFound(f"no log in {target}: neither an exported file (*{EXPORT_SUFFIX}) nor an archive")
    return tuple(found)


def _look(store: Store, found: list[str], depth: int) -> None:
    names = store.names("")
    if _is_archive(names):
        found.append(store.url)
        return
    for name in names:
        if len(found) >= LOGS_MAX_COUNT:
            raise CannotRead(f"{store.url} holds more than logs_max ({LOGS_MAX_COUNT}) logs; name a folder in it")
        if name.endswith(EXPORT_SUFFIX):
            found.append(f"{store.url}/{name}")
        elif depth < FOLDERS_DEEP_MAX_COUNT and "." not in name:
            _look(open_store(f"{store.url}/{name}"), found, depth + 1)


def _is_archive(names: list[str]) -> bool:
    return LAST in names or SEGMENTS in names
