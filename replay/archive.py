"""Writing a run's archive: the exact bytes of its log, what its entries name, and its last output.

Written when a run has ended; what stands already is kept, checked and continued, so it may be written again at any
time, also after a write that was cut short. A segment is written before its manifest, all else before `last.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runfold.events.entry import Head
from runfold.events.job import check_run_id
from runfold.events.limits import ARCHIVE_SEGMENT_MAX_BYTES
from runfold.events.strict import Refused
from runfold.replay.closing import close, course_of
from runfold.replay.errors import ArchiveRefused, NotFound
from runfold.replay.history import History, Link
from runfold.replay.manifest import LastManifest
from runfold.replay.segments import Grown, Line, grow
from runfold.replay.store import Store, is_url, open_store
from runfold.replay.unarchive import Archived, RankOutput, read_archive, read_last


def archive_path(data_dir: str | Path, run: str) -> str:
    """Return where a run is archived by default: `archive/<run>` under the data directory, which may be a URL."""
    try:
        check_run_id(run)
    except Refused as error:
        raise NotFound(error.reason) from None
    return f"{data_dir}/archive/{run}" if is_url(str(data_dir)) else str(Path(data_dir) / "archive" / run)


def list_archives(data_dir: str | Path) -> tuple[LastManifest, ...]:
    """Return the last manifests of the closed archives under a data directory, the run that ended last first."""
    store = open_store(data_dir)
    found = (read_last(open_store(f"{store.url}/archive/{run}")) for run in store.names("archive"))
    return tuple(sorted((last for last in found if last), key=lambda last: (last.ended_at, last.run), reverse=True))


def list_open(data_dir: str | Path) -> tuple[str, ...]:
    """Return the runs whose archives under a data directory are not closed: they went on when it was last written."""
    store = open_store(data_dir)
    return tuple(run for run in store.names("archive") if read_last(open_store(f"{store.url}/archive/{run}")) is None)


def write_archive(
    history: History,
    target: str | Path,
    *,
    blobs: Mapping[str, bytes] | None = None,
    outputs: Sequence[RankOutput] = (),
) -> LastManifest | None:
    """Write a run's archive to a directory or URL, and return its last manifest; None while the run goes on.

    `blobs` maps digests of `named_blobs` to bytes; one that is absent, or is not what its digest says, is recorded as
    not to be had. What the archive holds already is kept: a second call with the same log writes nothing.
    Raises `ArchiveRefused`, with nothing written, when the log is damaged or the archive is of another log, and
    `OSError` when the storage refuses; then the same call may be made again.
    """
    if history.damages:
        raise ArchiveRefused(f"{history.run} was not archived: its log is damaged. {history.trouble}")
    head = history.head
    store = open_store(target)
    standing = _standing(store, history)
    if standing is not None and standing.last is not None and standing.last.head == head:
        return standing.last
    grown = Grown()
    if standing is not None and standing.segments:
        newest, manifest = standing.segments[-1]
        grown = Grown(head=newest.head, manifest=manifest, segments=len(standing.segments))
    for lines in _segments(history.links[grown.next_n :]):
        grown = grow(store, history.run, grown, lines)
    return close(store, course_of(history), grown, blobs, outputs)


def _standing(store: Store, history: History) -> Archived | None:
    """Return what is archived already; raise `ArchiveRefused` unless it is the beginning of this very log."""
    try:
        archived = read_archive(store)
    except NotFound:
        return None
    kept = archived.history
    flaws = [damage for damage in kept.damages if damage.flaw != "truncated"]
    if flaws:
        raise ArchiveRefused(
            f"{history.run} was not archived: the archive at {store.url} is damaged ({kept.trouble}). "
            f"It was left as it is; move it away and archive again"
        )
    if kept.links and (
        len(kept.links) > len(history.links) or history.links[len(kept.links) - 1].hash != kept.head.hash
    ):
        raise ArchiveRefused(
            f"{history.run} was not archived: at {store.url} stands an archive of another log "
            f"(run {kept.run!r}, {len(kept.links)} entries). It was left as it is; choose another place"
        )
    return archived


def _segments(links: Sequence[Link]) -> Iterator[list[Line]]:
    """Cut links into segments of at most `ARCHIVE_SEGMENT_MAX_BYTES` of lines."""
    open_: list[Line] = []
    size = 0
    for link in links:
        if open_ and size + len(link.data) + 1 > ARCHIVE_SEGMENT_MAX_BYTES:
            yield open_
            open_, size = [], 0
        open_.append(Line(data=link.data, head=Head(n=link.entry.n, hash=link.hash), sequence=0))
        size += len(link.data) + 1
    if open_:
        yield open_
