"""The documents of an archive. These names are the storage format: fields are added, never renamed.

    segments/000000000000.jsonl.zst   exact bytes of the entries from that number on, one a line, at most 4 MiB of them
    segments/000000000000.json        its manifest, which names the digest of the manifest before it
    blobs/<sha256>                    what entries name by digest
    output/<attempt>-<rank>.jsonl.zst the last MiB of a rank's output: whole batches as published, one a line
    story.json                        the story as `replay` tells it, a copy for the first screen of a long run
    last.json                         written when the run has ended: the head, the outcome, the digests of all others

A segment counts once its manifest stands; the archive is closed once `last.json` stands.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

import msgspec

from runfold.events.base import Document
from runfold.events.entry import Head
from runfold.events.transitions import EndName

LAST: Final = "last.json"
STORY: Final = "story.json"
SEGMENTS: Final = "segments"
BLOBS: Final = "blobs"
OUTPUT: Final = "output"
NO_MANIFEST: Final = "0" * 64
"""`previous` of the first manifest."""


class SegmentManifest(Document, frozen=True, kw_only=True, tag_field="kind", tag="segment"):
    """A segment: its entries, its file's digest and size, the size of its lines, and the manifest before it.

    `sequence`: where its last entry stood in the stream, 0 when nobody knows; only to find the next one sooner.
    """

    v: Literal[1] = 1
    run: str
    segment: str
    first_n: int
    last_n: int
    sha256: str
    size_bytes: int
    lines_bytes: int
    head: Head
    previous: str
    sequence: int = 0


class ArchivedBlob(Document, frozen=True, kw_only=True):
    """A blob that entries name; `size_bytes` is None when it could not be had, and the file is not there."""

    sha256: str
    size_bytes: int | None


class ArchivedOutput(Document, frozen=True, kw_only=True):
    """A rank's output: its file's digest and size, its batches, and how many earlier ones were left out."""

    attempt: int
    rank: int
    file: str
    sha256: str
    size_bytes: int
    batches: int
    left_out: int


class LastManifest(Document, frozen=True, kw_only=True, tag_field="kind", tag="last"):
    """The last word on a run. `sha256` is of this document's own bytes with that field empty.

    `story`: the digest of the story kept beside it; empty where there is none.
    """

    v: Literal[1] = 1
    run: str
    name: str
    outcome: EndName
    reason: str
    attempts: int
    accepted_at: str
    ended_at: str
    duration_s: float
    head: Head
    entries: int
    segments: int
    previous: str
    blobs: tuple[ArchivedBlob, ...]
    outputs: tuple[ArchivedOutput, ...]
    sha256: str = ""
    story: str = ""


_ENCODER: Final = msgspec.json.Encoder()
_SEGMENT: Final = msgspec.json.Decoder(SegmentManifest)
_LAST: Final = msgspec.json.Decoder(LastManifest)


class BadManifest(ValueError):
    """Bytes that are no manifest, or not as they were written; says why."""


def digest(data: bytes) -> str:
    """Return the SHA-256 (hex) of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def segment_file(first_n: int) -> str:
    """Return the name of the segment that begins with this entry."""
    return f"{SEGMENTS}/{first_n:012d}.jsonl.zst"


def manifest_file(first_n: int) -> str:
    """Return the name of that segment's manifest."""
    return f"{SEGMENTS}/{first_n:012d}.json"


def output_file(attempt: int, rank: int) -> str:
    """Return the name of a rank's output."""
    return f"{OUTPUT}/{attempt}-{rank}.jsonl.zst"


def encode_segment(manifest: SegmentManifest) -> bytes:
    """Return a manifest's bytes as stored."""
    return _ENCODER.encode(manifest)


def decode_segment(data: bytes) -> SegmentManifest:
    """Return the manifest in these bytes; raise `BadManifest` when they are none."""
    try:
        return _SEGMENT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadManifest(str(error)) from None


def seal_last(manifest: LastManifest) -> bytes:
    """Return the last manifest's bytes as stored, its own digest filled in."""
    unsealed = msgspec.structs.replace(manifest, sha256="")
    return _ENCODER.encode(msgspec.structs.replace(manifest, sha256=digest(_ENCODER.encode(unsealed))))


def decode_last(data: bytes) -> LastManifest:
    """Return the last manifest in these bytes; raise `BadManifest` when they are none, or were changed."""
    try:
        manifest = _LAST.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadManifest(str(error)) from None
    # The bytes as they stand are looked at, not as this version would write them: later ones write more fields.
    sealed = f'"sha256":"{manifest.sha256}"'.encode()
    if data.count(sealed) != 1 or digest(data.replace(sealed, b'"sha256":""')) != manifest.sha256:
        raise BadManifest("its bytes are not those that were written")
    return manifest
