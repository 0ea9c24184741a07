"""Reading an archive: everything that is read is checked against its manifest, and what is wrong is remembered.

Byte ranges within a segment are of its unpacked lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from runfold.events.entry import GENESIS, NotAnEntry, decode_entry, hash_entry
from runfold.events.limits import ARCHIVE_SEGMENT_MAX_BYTES, ENTRY_MAX_BYTES, OUTPUT_TAIL_MAX_BYTES
from runfold.replay.errors import ArchiveRefused, CannotRead, NotFound
from runfold.replay.history import Damage, Flaw, History, KnownHead, Link, Raw, Where, cut_lines, link_up
from runfold.replay.manifest import (
    BLOBS,
    LAST,
    NO_MANIFEST,
    SEGMENTS,
    STORY,
    BadManifest,
    LastManifest,
    SegmentManifest,
    decode_last,
    decode_segment,
    digest,
    output_file,
)
from runfold.replay.pack import BadPack, unpack
from runfold.replay.store import Store, open_store

_UNPACKED_MAX_BYTES: Final = ARCHIVE_SEGMENT_MAX_BYTES + ENTRY_MAX_BYTES
"""A segment closes before it outgrows its limit; one entry alone may."""

_NO_FILE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""No file stands there: the archive lacks it. Any other error is the storage's, and may not be there the next time."""


class RankOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's output as it was published: its batches, oldest first."""

    attempt: int
    rank: int
    batches: tuple[bytes, ...]


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """An archive as read: its history, its segments' manifests with their digests, its last manifest."""

    history: History
    segments: tuple[tuple[SegmentManifest, str], ...]
    last: LastManifest | None


def read_archive(store: Store, *, deep: bool = False) -> Archived:
    """Read an archive whole. `deep` reads blobs and outputs as well, only to check them.

    Raises `NotFound` when nothing of an archive stands there, `CannotRead` when the storage refuses.
    """
    try:
        return _Reader(store).read(deep=deep)
    except OSError as error:
        raise CannotRead(f"{store.url}: {error}. Nothing was changed; try again when the storage answers") from error


def read_through(store: Store, run: str) -> Iterator[Link]:
    """Yield the entries of an archive one after the other; no more than a segment of them is held.

    Raises `ArchiveRefused` at the first that is not as it was written, and `OSError` when the storage refuses.
    """
    n, prev = 0, GENESIS
    reader = _Reader(store)
    for raws in reader.segments([]):
        if reader.damages:
            raise _refused(store, run, reader.damages[0].what)
        for raw in raws:
            try:
                entry = decode_entry(raw.data)
            except NotAnEntry as error:
                raise _refused(store, run, f"entry {n} cannot be read: {error}") from None
            if (entry.run, entry.n, entry.prev) != (run, n, prev):
                raise _refused(store, run, f"entry {n} does not follow from the one before it")
            n, prev = n + 1, hash_entry(raw.data)
            yield Link(entry=entry, data=raw.data, hash=prev, where=raw.where)


def _refused(store: Store, run: str, what: str) -> ArchiveRefused:
    return ArchiveRefused(
        f"{run} was not archived: the archive at {store.url} is damaged ({what}). "
        f"It was left as it is; move it away and archive again"
    )


def read_last(store: Store) -> LastManifest | None:
    """Return an archive's last manifest; None when it is not closed or that file is damaged (`read_archive` says)."""
    try:
        return decode_last(store.read(LAST))
    except (*_NO_FILE, BadManifest):
        return None
    except OSError as error:
        raise CannotRead(f"{store.url}: {error}") from error


def read_blob(store: Store, sha256: str) -> bytes:
    """Return a blob that entries name; raise `NotFound` or `CannotRead` when it is not there or is not that one."""
    try:
        data = store.read(f"{BLOBS}/{sha256}")
    except _NO_FILE:
        raise NotFound(f"the archive {store.url} has no blob {sha256}") from None
    if digest(data) != sha256:
        raise CannotRead(f"the blob {sha256} in {store.url} was changed: its bytes have {digest(data)}")
    return data


def read_output(store: Store, attempt: int, rank: int) -> tuple[bytes, ...]:
    """Return the archived batches of a rank's output, oldest first; nothing when it had none."""
    name = output_file(attempt, rank)
    try:
        return tuple(unpack(store.read(name), OUTPUT_TAIL_MAX_BYTES).splitlines())
    except FileNotFoundError:
        return ()
    except IsADirectoryError:
        raise CannotRead(f"{name} in {store.url} is missing: a directory is in its place") from None
    except BadPack as error:
        raise CannotRead(f"{name} in {store.url} is damaged: {error}") from None


def archived_beside(history: History) -> tuple[dict[str, bytes], tuple[RankOutput, ...]]:
    """Return the blobs and outputs that stand in the archive a history was read from; nothing for other kinds.

    Raises `CannotRead` for one that is not as it was written.
    """
    if history.kind != "archive":
        return {}, ()
    store = open_store(history.target)
    last = read_last(store)
    if last is None:
        return {}, ()
    blobs = {blob.sha256: read_blob(store, blob.sha256) for blob in last.blobs if blob.size_bytes is not None}
    outputs = (
        RankOutput(attempt=one.attempt, rank=one.rank, batches=read_output(store, one.attempt, one.rank))
        for one in last.outputs
    )
    return blobs, tuple(outputs)


class _Reader:
    """One reading of an archive; `damages` grows as it goes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.damages: list[Damage] = []

    def read(self, *, deep: bool) -> Archived:
        raws: list[Raw] = []
        segments: list[tuple[SegmentManifest, str]] = []
        for lines in self.segments(segments):
            raws.extend(lines)
        last = self._last(segments)
        if not segments and last is None and not self.damages:
            raise NotFound(f"no archive of a run stands at {self.store.url}")
        linked = link_up(raws, last.run if last else segments[0][0].run if segments else None)
        if last is not None and deep:
            if last.story:
                self._check_file("story", STORY, last.story)
            self._check_blobs(last)
            self._check_outputs(last)
        history = History(
            target=self.store.url,
            kind="archive",
            run=linked.run,
            links=linked.links,
            strays=linked.strays,
            damages=(*linked.damages, *self.damages),
            heads=_heads(segments, last),
        )
        return Archived(history=history, segments=tuple(segments), last=last)

    def _found(self, flaw: Flaw, file: str, what: str, n: int | None = None) -> None:
        self.damages.append(Damage(flaw=flaw, what=what, n=n, where=Where(file=file)))

    def _bytes(self, flaw: Flaw, file: str, what: str, n: int | None = None, more: str = "") -> bytes | None:
        """Return a file's bytes; None where no file stands, which is remembered."""
        try:
            return self.store.read(file)
        except IsADirectoryError:
            self._found(flaw, file, f"{what} is missing: a directory is in its place", n)
        except _NO_FILE:
            self._found(flaw, file, f"{what} is missing{more}", n)
        return None

    def segments(self, found: list[tuple[SegmentManifest, str]]) -> Iterator[list[Raw]]:
        """Yield the lines of each segment; `found` is given its manifest, with its digest."""
        before = NO_MANIFEST
        for name in (f"{SEGMENTS}/{name}" for name in self.store.names(SEGMENTS) if name.endswith(".json")):
            data = self._bytes("manifest", name, "this manifest")
            manifest = None if data is None else self._manifest(name, data, before)
            before = "" if data is None else digest(data)
            if manifest is not None:
                found.append((manifest, before))
            yield self._lines(f"{name}l.zst", manifest)

    def _manifest(self, name: str, data: bytes, before: str) -> SegmentManifest | None:
        try:
            manifest = decode_segment(data)
        except BadManifest as error:
            self._found("manifest", name, f"this manifest cannot be read: {error}")
            return None
        if manifest.previous != before:
            what = "this manifest names another one before it: that one is missing, or was changed"
            self._found("manifest", name, what, manifest.first_n)
        return manifest

    def _lines(self, file: str, manifest: SegmentManifest | None) -> list[Raw]:
        first_n = manifest.first_n if manifest else None
        packed = self._bytes("segment", file, "this segment", first_n, ": its manifest stands alone")
        if packed is None:
            return []
        if manifest is not None and digest(packed) != manifest.sha256:
            self._found(
                "segment", file, "this segment was changed: its bytes are not those its manifest names", first_n
            )
        try:
            lines = unpack(packed, _UNPACKED_MAX_BYTES)
        except BadPack as error:
            self._found("segment", file, f"this segment is lost: {error}", first_n)
            return []
        return cut_lines(lines.removesuffix(b"\n"), file)

    def _last(self, segments: list[tuple[SegmentManifest, str]]) -> LastManifest | None:
        try:
            last = decode_last(self.store.read(LAST))
        except IsADirectoryError:
            self._found("manifest", LAST, "the last manifest is missing: a directory is in its place")
            return None
        except (FileNotFoundError, NotADirectoryError):
            if segments:
                what = "the archive is not closed: the run went on when it was written, or its end is lost"
                self._found("truncated", LAST, what)
            return None
        except BadManifest as error:
            self._found("manifest", LAST, f"the last manifest cannot be believed: {error}")
            return None
        if last.previous != (segments[-1][1] if segments else NO_MANIFEST):
            self._found("manifest", LAST, "the manifest before the last one is missing, or was changed")
        return last

    def _check_blobs(self, last: LastManifest) -> None:
        for blob in last.blobs:
            file = f"{BLOBS}/{blob.sha256}"
            if blob.size_bytes is None:
                self._found("blob", file, "this blob could not be had when the run was archived")
                continue
            self._check_file("blob", file, blob.sha256)

    def _check_outputs(self, last: LastManifest) -> None:
        for output in last.outputs:
            self._check_file("output", output.file, output.sha256)

    def _check_file(self, flaw: Flaw, file: str, sha256: str) -> None:
        data = self._bytes(flaw, file, f"this {flaw}")
        if data is not None and digest(data) != sha256:
            self._found(flaw, file, f"this {flaw} was changed: its bytes are not those that the last manifest names")


def _heads(segments: list[tuple[SegmentManifest, str]], last: LastManifest | None) -> tuple[KnownHead, ...]:
    """Return the newest head that the archive's own documents state."""
    if last is not None:
        return (KnownHead(kept_by=f"the archive's {LAST}", head=last.head),)
    if not segments:
        return ()
    return (KnownHead(kept_by="the archive's newest segment manifest", head=segments[-1][0].head),)
