"""What is left of a log whose run was given back: its last entry, which tells that the run is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from runfold.events.entry import Entry, Head, NotAnEntry, decode_entry, hash_entry
from runfold.events.transitions import EndName, LogRestored, StateChanged

ENDS: Final = frozenset(get_args(EndName))


@dataclass(frozen=True, slots=True)
class LastEntry:
    """What a log still says of a run that is over."""

    entry: Entry
    head: Head


def last_of(run: str, data: bytes) -> LastEntry | None:
    """Return the entry of these bytes if a run that is over may end in it, and it is not the log's first.

    That is the one by which it ended, or by which its log was restored after that.
    """
    try:
        entry = decode_entry(data)
    except NotAnEntry:
        return None
    if entry.run != run or entry.n == 0:
        return None
    for item in entry.transitions:
        if isinstance(item, LogRestored) or (isinstance(item, StateChanged) and item.to_state in ENDS):
            return LastEntry(entry, Head(n=entry.n, hash=hash_entry(data)))
    return None
