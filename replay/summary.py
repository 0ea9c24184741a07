"""The story kept beside an archive, so that a long run's first screen needs not wait for its entries to be read.

It is a copy, and the last manifest names its digest. Whoever shows it tells it again from the entries, and says when
the two differ.
"""

from __future__ import annotations

from typing import Final

import msgspec

from runfold.replay.errors import CannotRead
from runfold.replay.manifest import STORY, digest
from runfold.replay.store import Store
from runfold.replay.story import Story
from runfold.replay.unarchive import read_last

_DECODER: Final = msgspec.json.Decoder(Story)


def read_summary(store: Store, entries_min: int = 0) -> Story | None:
    """Return the story kept beside a closed archive of at least so many entries.

    None when there is none, when it was changed, or when it was written by a version that told stories otherwise.
    """
    try:
        last = read_last(store)
        if last is None or not last.story or last.entries < entries_min:
            return None
        data = store.read(STORY)
        return _DECODER.decode(data) if digest(data) == last.story else None
    except (OSError, CannotRead, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
