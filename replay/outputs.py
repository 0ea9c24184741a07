"""What ranks printed, as an archive keeps it: which files there are, and each of them read and checked."""

from __future__ import annotations

import re
from typing import Final

from runfold.events.base import Value
from runfold.events.limits import OUTPUT_TAIL_MAX_BYTES
from runfold.replay.errors import CannotRead
from runfold.replay.manifest import LAST, OUTPUT, BadManifest, decode_last, digest
from runfold.replay.pack import BadPack, unpack
from runfold.replay.store import Store

_NAME: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})\.jsonl\.zst")


class KeptOutput(Value, frozen=True, kw_only=True):
    """The file with what a rank printed in an attempt; `sha256` is empty where nothing states it."""

    attempt: int
    rank: int
    file: str
    sha256: str = ""


class KeptOutputs(Value, frozen=True, kw_only=True):
    """The files of an archive, by attempt and rank. `trouble`: why they could not be had from its last manifest."""

    files: tuple[KeptOutput, ...]
    trouble: str = ""


def kept_outputs(store: Store) -> KeptOutputs:
    """Return the files with what ranks printed: those the last manifest names, or, without it, those that stand there.

    Raises `CannotRead` when the storage refuses.
    """
    try:
        last = decode_last(store.read(LAST))
    except (FileNotFoundError, NotADirectoryError):
        return KeptOutputs(files=_standing(store))
    except (BadManifest, IsADirectoryError) as error:
        trouble = f"{LAST} in {store.url} is damaged ({error}), and does not tell which ranks printed something"
        return KeptOutputs(files=_standing(store), trouble=trouble)
    except OSError as error:
        raise CannotRead(f"{store.url}: {error}") from error
    named = (KeptOutput(attempt=one.attempt, rank=one.rank, file=one.file, sha256=one.sha256) for one in last.outputs)
    return KeptOutputs(files=tuple(sorted(named, key=_place)))


def read_kept(store: Store, kept: KeptOutput) -> tuple[bytes, ...]:
    """Return the batches in a file, oldest first; raise `CannotRead` when it is not as it was written."""
    try:
        data = store.read(kept.file)
        if kept.sha256 and digest(data) != kept.sha256:
            raise CannotRead(f"{kept.file} in {store.url} is damaged: its bytes are not those that {LAST} names")
        return tuple(unpack(data, OUTPUT_TAIL_MAX_BYTES).splitlines())
    except FileNotFoundError:
        raise CannotRead(f"{kept.file} in {store.url} is missing") from None
    except (BadPack, OSError) as error:
        raise CannotRead(f"{kept.file} in {store.url} is damaged: {error}") from error


def _standing(store: Store) -> tuple[KeptOutput, ...]:
    found = [
        KeptOutput(attempt=int(name[1]), rank=int(name[2]), file=f"{OUTPUT}/{name[0]}")
        for name in map(_NAME.fullmatch, store.names(OUTPUT))
        if name is not None
    ]
    return tuple(sorted(found, key=_place))


def _place(kept: KeptOutput) -> tuple[int, int]:
    return kept.attempt, kept.rank
