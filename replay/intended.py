"""Intended differences: what a later decider is meant to decide otherwise on an old log, and why.

Beside a log `name.jsonl` stands `name.differences.toml`, in an archive `differences.toml`:

    [[difference]]
    entry = 7
    since = "0.2.0"
    reason = "a segfault is retried on another node first"
"""

from __future__ import annotations

import tomllib
from typing import Final

import msgspec

from runfold.events.base import Document
from runfold.replay.errors import CannotRead
from runfold.replay.store import is_url, open_store

SUFFIX: Final = ".differences.toml"
IN_ARCHIVE: Final = "differences.toml"
_EXPORT: Final = ".jsonl"


class Intended(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry on which another decision is meant: since which version of runfold, and why."""

    entry: int
    reason: str
    since: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    difference: tuple[Intended, ...] = ()


def read_intended(target: str) -> tuple[Intended, ...]:
    """Return the differences that are intended of a log; none when no such list stands beside it.

    Raises `CannotRead` for a list that is none, or that gives no reason.
    """
    folder, name = (target, IN_ARCHIVE)
    if target.endswith(_EXPORT):
        folder, _, file = target.rpartition("/")
        name = file.removesuffix(_EXPORT) + SUFFIX
    if not is_url(target) and not folder:
        folder = "."
    try:
        data = open_store(folder).read(name)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise CannotRead(f"{folder}/{name}: {error}") from error
    return _parsed(data, f"{folder}/{name}")


def _parsed(data: bytes, where: str) -> tuple[Intended, ...]:
    try:
        found = msgspec.convert(tomllib.loads(data.decode()), _File).difference
    except (ValueError, UnicodeDecodeError) as error:
        raise CannotRead(f"{where} is no list of intended differences: {error}") from None
    for item in found:
        if not item.reason.strip():
            raise CannotRead(f"{where}: the difference on entry {item.entry} gives no reason")
    return found
