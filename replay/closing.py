"""Closing an archive: what its entries tell of the run's end, the blobs that they name, its last output, its last word.

Entries are taken one after the other, and none is kept but those that hold more than reports: a log may be longer
than what fits into memory. What is kept grows all the same with the reports that tell what their time went into (see
`spans`), by some 350 bytes each, and with the checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from runfold.events.conclusions import ProgressStopped
from runfold.events.entry import Entry, Head
from runfold.events.facts import RankFailed, RankReturned, TaskEnded
from runfold.events.limits import OUTPUT_TAIL_MAX_BYTES
from runfold.events.transitions import AttemptStarted, FailureDecided, RunAccepted, StateChanged
from runfold.replay.history import History, end_name
from runfold.replay.manifest import (
    BLOBS,
    LAST,
    STORY,
    ArchivedBlob,
    ArchivedOutput,
    LastManifest,
    digest,
    output_file,
    seal_last,
)
from runfold.replay.pack import pack_lines
from runfold.replay.segments import Grown
from runfold.replay.store import Store
from runfold.replay.story import Teller
from runfold.replay.unarchive import RankOutput, read_through


class Course:
    """What a run's entries, taken one by one, tell for the end of its archive; `head` is the newest taken."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.teller = Teller()

    def take(self, entry: Entry, entry_hash: str) -> None:
        """Take the next entry."""
        self.head = Head(n=entry.n, hash=entry_hash)
        self.teller.take(entry)

    @property
    def named_blobs(self) -> tuple[str, ...]:
        """The digests (SHA-256, hex) of the blobs that the entries name, in order of first mention."""
        return named_in(self.teller.telling)


def course_of(history: History) -> Course:
    """Return what a history tells."""
    course = Course()
    for link in history.links:
        course.take(link.entry, link.hash)
    return course


def course_in(store: Store, run: str) -> Course:
    """Return what the entries of an archive tell; raise what `read_through` raises."""
    course = Course()
    for link in read_through(store, run):
        course.take(link.entry, link.hash)
    return course


def named_blobs(history: History) -> tuple[str, ...]:
    """Return the digests (SHA-256, hex) of the blobs that a history's entries name, in order of first mention."""
    return named_in(history.telling)


def named_in(telling: Iterable[Entry]) -> tuple[str, ...]:
    """Return the digests of the blobs that these entries name."""
    found = {_bare(name): None for entry in telling for name in _names(entry)}
    return tuple(name for name in found if len(name) == 64)


def close(
    store: Store,
    course: Course,
    grown: Grown,
    blobs: Mapping[str, bytes] | None = None,
    outputs: Sequence[RankOutput] = (),
) -> LastManifest | None:
    """Write what an archive has besides its segments, and its last manifest; None, and nothing, while the run goes on.

    Raises `OSError` when the storage refuses; then the same call may be made again.
    """
    end = _end(course, grown)
    if end is None or course.head is None:
        return None
    last = msgspec.structs.replace(
        end,
        blobs=tuple(_write_blob(store, name, (blobs or {}).get(name)) for name in course.named_blobs),
        outputs=tuple(_write_output(store, output) for output in outputs if output.batches),
    )
    told = msgspec.json.encode(course.teller.story(course.head))
    store.write(STORY, told)
    data = seal_last(msgspec.structs.replace(last, story=digest(told)))
    store.write(LAST, data)
    return msgspec.json.decode(data, type=LastManifest)


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


def _end(course: Course, grown: Grown) -> LastManifest | None:
    """Return what the log says of its run's end, blobs, outputs and story left out; None while the run goes on."""
    name, attempts, ended = "", 0, None
    for entry in course.teller.telling:
        for transition in entry.transitions:
            if isinstance(transition, RunAccepted):
                name = transition.job.name or ""
            elif isinstance(transition, AttemptStarted):
                attempts = transition.attempt
            elif isinstance(transition, StateChanged) and end_name(transition.to_state):
                ended = (entry, transition)
    outcome = end_name(ended[1].to_state) if ended else None
    first, head = course.teller.first, course.head
    if ended is None or outcome is None or first is None or head is None:
        return None
    entry, transition = ended
    return LastManifest(
        run=first.run,
        name=name,
        outcome=outcome,
        reason=transition.reason,
        attempts=attempts,
        accepted_at=first.at,
        ended_at=entry.at,
        duration_s=entry.t,
        head=head,
        entries=head.n + 1,
        segments=grown.segments,
        previous=grown.manifest,
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
