"""A snapshot: the state after an entry, so that a long log need not be folded from its beginning.

It is worth nothing by itself: whoever uses one sees first that the entry stands where it says, with those bytes.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Final

import msgspec

from runfold.events.base import Document
from runfold.events.entry import Head
from runfold.events.limits import SNAPSHOT_EVERY_COUNT, SNAPSHOT_MAX_BYTES, SNAPSHOT_TAIL_EVERY_COUNT
from runfold.events.state import RunState

TAIL: Final = "tail"
"""The key of a run's newest snapshot, replaced again and again; the others have the entry's number as theirs."""


class StateSnapshot(Document, frozen=True, kw_only=True):
    """The state after the entry `head`, which stands at `sequence`; `fold` names what folded it."""

    v: int = 1
    fold: str
    run: str
    sequence: int
    head: Head
    state: RunState


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(StateSnapshot)


@cache
def fold_version(version: str) -> str:
    """Return what a fold is known by: the program's version, and the shape of the state that it makes."""
    shape = hashlib.sha256(msgspec.json.encode(msgspec.json.schema(RunState), order="deterministic"))
    return f"{version}/{shape.hexdigest()[:16]}"


def snapshot_keys(n: int) -> tuple[str, ...]:
    """Return the keys under which a snapshot after entry `n` is kept; most entries have none."""
    if n == 0 or n % SNAPSHOT_TAIL_EVERY_COUNT:
        return ()
    return (TAIL, str(n)) if n % SNAPSHOT_EVERY_COUNT == 0 else (TAIL,)


def encode_snapshot(snapshot: StateSnapshot) -> bytes | None:
    """Return the bytes of a snapshot; None when it is too large to be kept."""
    data = _ENCODER.encode(snapshot)
    return data if len(data) <= SNAPSHOT_MAX_BYTES else None


def decode_snapshot(data: bytes, run: str, fold: str) -> StateSnapshot | None:
    """Return a run's snapshot that was folded as it would be now; None for anything else."""
    try:
        snapshot = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return snapshot if (snapshot.run, snapshot.fold, snapshot.state.n) == (run, fold, snapshot.head.n) else None
