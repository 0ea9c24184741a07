"""An archive that grows with its run's log: segment after segment, each with a manifest that names the one before.

Only the newest manifest is read to go on; who reads the archive checks all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from runfold.events.base import Value
from runfold.events.entry import Head
from runfold.replay.errors import ArchiveRefused
from runfold.replay.manifest import (
    NO_MANIFEST,
    SEGMENTS,
    BadManifest,
    SegmentManifest,
    decode_segment,
    digest,
    encode_segment,
    manifest_file,
    segment_file,
)
from runfold.replay.pack import pack_lines
from runfold.replay.store import Store


class Grown(Value, frozen=True, kw_only=True):
    """How far an archive goes: its head (None: it holds nothing), where that stood in the stream, its segments."""

    head: Head | None = None
    sequence: int = 0
    manifest: str = NO_MANIFEST
    segments: int = 0

    @property
    def next_n(self) -> int:
        """The number of the entry that comes next."""
        return 0 if self.head is None else self.head.n + 1


class Line(Value, frozen=True, kw_only=True):
    """An entry's exact bytes, its head, and its place in the stream."""

    data: bytes
    head: Head
    sequence: int


def grown_so_far(store: Store, run: str) -> Grown:
    """Return how far an archive goes. Raises `ArchiveRefused` when it is another run's, or damaged; `OSError`."""
    names = [name for name in store.names(SEGMENTS) if name.endswith(".json")]
    if not names:
        return Grown()
    try:
        data = store.read(f"{SEGMENTS}/{names[-1]}")
        newest = decode_segment(data)
    except (BadManifest, IsADirectoryError) as error:
        raise ArchiveRefused(
            f"{run} is not archived further: the newest manifest at {store.url} is damaged ({error}). "
            f"It was left as it is; move the archive away"
        ) from None
    if newest.run != run:
        raise ArchiveRefused(f"{run} is not archived: at {store.url} stands an archive of run {newest.run!r}")
    return Grown(head=newest.head, sequence=newest.sequence, manifest=digest(data), segments=len(names))


def grow(store: Store, run: str, before: Grown, lines: Sequence[Line]) -> Grown:
    """Write one segment of these entries, which follow `before`; return how far the archive goes then."""
    first, last = lines[0].head.n, lines[-1]
    packed = pack_lines(line.data for line in lines)
    manifest = SegmentManifest(
        run=run,
        segment=segment_file(first),
        first_n=first,
        last_n=last.head.n,
        sha256=digest(packed),
        size_bytes=len(packed),
        lines_bytes=sum(len(line.data) + 1 for line in lines),
        head=last.head,
        previous=before.manifest,
        sequence=last.sequence,
    )
    data = encode_segment(manifest)
    # The segment first: a manifest that stands has its segment.
    store.write(manifest.segment, packed)
    store.write(manifest_file(first), data)
    return Grown(head=last.head, sequence=last.sequence, manifest=digest(data), segments=before.segments + 1)
