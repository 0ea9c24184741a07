"""Writing a run's archive: the exact bytes of its log, what its entries name, and its last output.

Written when a run has ended; what stands already is kept, checked and continued, so it may be written again at any
time, also after a write that was cut short. A segment is written before its manifest, all else before `last.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from runfold.events.conclusions import ProgressStopped
from runfold.events.entry import Entry, Head
from runfold.events.facts import RankFailed, RankReturned, TaskEnded
from runfold.events.job import check_run_id
from runfold.events.limits import ARCHIVE_SEGMENT_MAX_BYTES, OUTPUT_TAIL_MAX_BYTES
from runfold.events.strict import Refused
from runfold.events.transitions import AttemptStarted, FailureDecided, RunAccepted, StateChanged
from runfold.replay.errors import ArchiveRefused, NotFound
from runfold.replay.history import History, Link, end_name
from runfold.replay.manifest import (
    BLOBS,
    LAST,
    NO_MANIFEST,
    STORY,
    ArchivedBlob,
    ArchivedOutput,
    LastManifest,
    SegmentManifest,
    digest,
    encode_segment,
    manifest_file,
    output_file,
    seal_last,
    segment_file,
)
from runfold.replay.pack import pack_lines
from runfold.replay.store import Store, is_url, open_store
from runfold.replay.story import story
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


def named_blobs(history: History) -> tuple[str, ...]:
    """Return the digests (SHA-256, hex) of the blobs that a history's entries name, in order of first mention."""
    found = {_bare(name): None for entry in history.telling for name in _names(entry)}
    return tuple(name for name in found if len(name) == 64)


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
    segments = list(standing.segments) if standing else []
    for links in _segments(history.links[segments[-1][0].last_n + 1 if segments else 0 :]):
        segments.append(_write_segment(store, history.run, links, segments[-1][1] if segments else NO_MANIFEST))
    end = _end(history)
    if end is None:
        return None
    last = msgspec.structs.replace(
        end,
        head=head,
        segments=len(segments),
        previous=segments[-1][1],
        blobs=tuple(_write_blob(store, name, (blobs or {}).get(name)) for name in named_blobs(history)),
        outputs=tuple(_write_output(store, output) for output in outputs if output.batches),
    )
    told = msgspec.json.encode(story(history))
    store.write(STORY, told)
    data = seal_last(msgspec.structs.replace(last, story=digest(told)))
    store.write(LAST, data)
    return msgspec.json.decode(data, type=LastManifest)


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


def _segments(links: Sequence[Link]) -> Iterator[list[Link]]:
    """Cut links into segments of at most `ARCHIVE_SEGMENT_MAX_BYTES` of lines."""
    open_: list[Link] = []
    size = 0
    for link in links:
        if open_ and size + len(link.data) + 1 > ARCHIVE_SEGMENT_MAX_BYTES:
            yield open_
            open_, size = [], 0
        open_.append(link)
        size += len(link.data) + 1
    if open_:
        yield open_


def _write_segment(store: Store, run: str, links: Sequence[Link], previous: str) -> tuple[SegmentManifest, str]:
    first, last = links[0].entry.n, links[-1]
    packed = pack_lines(link.data for link in links)
    manifest = SegmentManifest(
        run=run,
        segment=segment_file(first),
        first_n=first,
        last_n=last.entry.n,
        sha256=digest(packed),
        size_bytes=len(packed),
        lines_bytes=sum(len(link.data) + 1 for link in links),
        head=Head(n=last.entry.n, hash=last.hash),
        previous=previous,
    )
    data = encode_segment(manifest)
    store.write(manifest.segment, packed)
    store.write(manifest_file(first), data)
    return manifest, digest(data)


def _write_blob(store: Store, name: str, data: bytes | None) -> ArchivedBlob:
    if data is None or digest(data) != name:
        return ArchivedBlob(sha256=name, size_bytes=None)
    store.write(f"{BLOBS}/{name}", data)
    return ArchivedBlob(sha256=name, size_bytes=len(data))


def _write_output(store: Store, output: RankOutput) -> ArchivedOutput:
    kept: list[bytes] = []
    size = 0
    for batch in (batch.replace(b"\n", b" ") for batch in reversed(output.batches)):
        size += len(batch) + 1
        if size > OUTPUT_TAIL_MAX_BYTES:
            break
        kept.append(batch)
    packed = pack_lines(reversed(kept))
    file = output_file(output.attempt, output.rank)
    store.write(file, packed)
    return ArchivedOutput(
        attempt=output.attempt,
        rank=output.rank,
        file=file,
        sha256=digest(packed),
        size_bytes=len(packed),
        batches=len(kept),
        left_out=len(output.batches) - len(kept),
    )


def _end(history: History) -> LastManifest | None:
    """Return what the log says of its run's end, the archive's own part left out; None while the run goes on."""
    name, attempts, ended = "", 0, None
    for entry in history.telling:
        for transition in entry.transitions:
            if isinstance(transition, RunAccepted):
                name = transition.job.name or ""
            elif isinstance(transition, AttemptStarted):
                attempts = transition.attempt
            elif isinstance(transition, StateChanged) and end_name(transition.to_state):
                ended = (entry, transition)
    outcome = end_name(ended[1].to_state) if ended else None
    if ended is None or outcome is None:
        return None
    entry, transition = ended
    return LastManifest(
        run=history.run,
        name=name,
        outcome=outcome,
        reason=transition.reason,
        attempts=attempts,
        accepted_at=history.links[0].entry.at,
        ended_at=entry.at,
        duration_s=entry.t,
        head=history.head,
        entries=len(history.links),
        segments=0,
        previous=NO_MANIFEST,
        blobs=(),
        outputs=(),
    )


def _names(entry: Entry) -> Iterator[str]:
    """Yield every blob that an entry names."""
    for item in entry.inputs:
        match item:
            case RankReturned(blob=str(name)):
                yield name
            case RankFailed(error=error) if error.blob:
                yield error.blob
            case TaskEnded(error=error) if error and error.blob:
                yield error.blob
            case TaskEnded(seen=seen):
                yield from (one.stacks for one in seen if one.stacks is not None)
            case ProgressStopped(stacks=stacks):
                yield from stacks.values()
            case _:
                continue
    for transition in entry.transitions:
        match transition:
            case RunAccepted(job=job) if job.entrypoint.startswith("blob:"):
                yield job.entrypoint
            case FailureDecided(failure=failure) if failure.error.blob:
                yield failure.error.blob
            case _:
                continue


def _bare(name: str) -> str:
    """Return the bare digest of `blob:sha256:<digest>`, `sha256:<digest>` or `<digest>`."""
    return name.rpartition(":")[2]
