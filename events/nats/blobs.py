"""Blobs: what is too large for a message, named by its SHA-256, checked before use.

They stand in a bucket of the broker's object store as other clients know it (`nats object get` works).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events.nats.api import Api
from runfold.events.nats.errors import ApiRefused, BlobDamaged, BlobMissing, Unanswered
from runfold.events.nats.publish import MSG_ID, Rejected, publish_acked

if TYPE_CHECKING:
    from runfold.events.nats.connection import Connection

CHUNK_MAX_BYTES: Final = 128 * 1024
BLOB_MAX_BYTES: Final = 256 * 1024 * 1024
PUT_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 5.0
RETRY_EVERY_S: Final = 0.25


class _Options(msgspec.Struct):
    max_chunk_size: int = CHUNK_MAX_BYTES


class _Meta(msgspec.Struct, kw_only=True):
    """An object's description, as the object store keeps it."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str
    options: _Options = msgspec.field(default_factory=_Options)


def blob_digest(data: bytes) -> str:
    """Return the name of a blob: `sha256:` and the hex digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Blobs:
    """The blobs of one broker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bucket = connection.names.blobs_bucket
        self._stream = connection.names.blobs
        self._api = Api(connection)

    async def put(self, data: bytes, *, timeout_s: float = PUT_TIMEOUT_S) -> str:
        """Store a blob and return its digest; one that is there already is not sent again.

        Raises:
            ValueError: it is larger than `BLOB_MAX_BYTES`.
            Unanswered: the broker did not take it in time; nothing refers to the part it has.
            ApiRefused: the broker has no room for it.
        """
        if len(data) > BLOB_MAX_BYTES:
            raise ValueError(f"a blob of {len(data)} bytes cannot be stored: the limit is {BLOB_MAX_BYTES} bytes")
        digest = blob_digest(data)
        try:
            async with asyncio.timeout(timeout_s):
                await self._put(digest, data)
        except TimeoutError:
            raise Unanswered(self._meta_subject(digest), f"not stored within {timeout_s:g} s") from None
        return digest

    async def get(self, digest: str) -> bytes:
        """Return a blob's bytes, checked.

        Raises:
            BlobMissing: the broker does not hold it.
            BlobDamaged: what it holds is something else.
            Unanswered: the broker does not answer.
        """
        meta = await self._meta(digest)
        if meta is None:
            raise BlobMissing(digest)
        subject = self._chunk_subject(meta.nuid)
        chunks: list[bytes] = []
        sequence = 0
        for _ in range(meta.chunks):
            found = await self._api.next_message(self._stream, subject, sequence + 1)
            if found is None:
                break
            chunks.append(found.data)
            sequence = found.sequence
        data = b"".join(chunks)
        actual = blob_digest(data)
        if actual != digest:
            raise BlobDamaged(digest, actual)
        return data

    async def has(self, digest: str) -> bool:
        """Say whether the broker holds a blob."""
        return await self._meta(digest) is not None

    async def _put(self, digest: str, data: bytes) -> None:
        if await self._meta(digest) is not None:
            return
        nuid = secrets.token_hex(11)
        chunks = [data[start : start + CHUNK_MAX_BYTES] for start in range(0, len(data), CHUNK_MAX_BYTES)]
        for number, chunk in enumerate(chunks):
            await self._publish(self._chunk_subject(nuid), chunk, {MSG_ID: f"{nuid}.{number}"})
        meta = _Meta(
            name=digest,
            bucket=self._bucket,
            nuid=nuid,
            size=len(data),
            chunks=len(chunks),
            digest=f"SHA-256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()}",
        )
        # Last: a blob without its description is not there.
        await self._publish(self._meta_subject(digest), msgspec.json.encode(meta), {"Nats-Rollup": "sub"})

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Publish until answered; `put` bounds it. A repeat is known by its message id, or changes nothing."""
        while True:
            try:
                answer = await publish_acked(self._connection, subject, data, headers, timeout_s=ANSWER_TIMEOUT_S)
            except Unanswered:
                await asyncio.sleep(RETRY_EVERY_S)
                continue
            if isinstance(answer, Rejected):
                raise ApiRefused(subject, answer.code, answer.err_code, answer.description)
            return

    async def _meta(self, digest: str) -> _Meta | None:
        found = await self._api.last_message(self._stream, self._meta_subject(digest))
        if found is None:
            return None
        try:
            return msgspec.json.decode(found.data, type=_Meta)
        except msgspec.DecodeError:
            raise BlobDamaged(digest, "something else: its description cannot be read") from None

    def _meta_subject(self, digest: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(digest.encode()).decode()}"

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"
