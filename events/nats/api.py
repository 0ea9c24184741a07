"""The JetStream API: requests with JSON bodies, answers of known types."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from runfold.events.nats.errors import ApiRefused, Unanswered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.nats.connection import Connection

API_TIMEOUT_S: Final = 5.0
STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
CONSUMER_NOT_MADE: Final = 10012
"""A consumer could not be created or changed, for one that stands already too: on a full disk."""
NO_MESSAGE: Final = 10037
NS_PER_S: Final = 1_000_000_000


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a stream's configuration that we set; the defaults are the server's."""

    name: str
    subjects: tuple[str, ...] = ()
    retention: str = "limits"
    storage: str = "file"
    discard: str = "old"
    num_replicas: int = 1
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    duplicate_window: int = 0
    deny_delete: bool = False
    deny_purge: bool = False
    allow_direct: bool = False
    allow_rollup_hdrs: bool = False
    allow_msg_ttl: bool = False
    persist_mode: str = "default"


class StreamState(msgspec.Struct, frozen=True):
    """What a stream holds."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: str = ""
    last_seq: int = 0
    subjects: dict[str, int] = {}


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as the server knows it; `created` is its identity: a stream made anew has another."""

    config: StreamConfig
    state: StreamState
    created: str


class ConsumerSequence(msgspec.Struct, frozen=True):
    """How far a consumer has sent: by its own count, and in the stream."""

    consumer_seq: int = 0
    stream_seq: int = 0


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer as the server knows it."""

    name: str
    delivered: ConsumerSequence = ConsumerSequence()
    num_pending: int = 0


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Failure(msgspec.Struct):
    error: _Error | None = None


class _Message(msgspec.Struct):
    subject: str
    seq: int
    time: datetime
    data: str = ""
    hdrs: str = ""


class _MessageAnswer(msgspec.Struct):
    message: _Message


class _Purged(msgspec.Struct):
    purged: int = 0


class StoredMessage(msgspec.Struct, frozen=True):
    """A message of a stream, read by itself."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]
    stored_at_s: float


_Answer = TypeVar("_Answer")


class Api:
    """The JetStream API over one connection; each call is bounded by `timeout_s`."""

    def __init__(self, connection: Connection, timeout_s: float = API_TIMEOUT_S) -> None:
        self.connection = connection
        self.timeout_s = timeout_s

    async def stream_info(self, stream: str) -> StreamInfo | None:
        """Return a stream's configuration and state, or None when there is none."""
        try:
            return await self._call(f"STREAM.INFO.{stream}", b"", StreamInfo)
        except ApiRefused as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise

    async def subjects(self, stream: str, subject: str) -> dict[str, int] | None:
        """Return the subjects that hold messages and match one with wildcards, and how many each; None: no stream."""
        body = msgspec.json.encode({"subjects_filter": subject})
        try:
            return (await self._call(f"STREAM.INFO.{stream}", body, StreamInfo)).state.subjects
        except ApiRefused as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise

    async def create_stream(self, config: StreamConfig) -> StreamInfo:
        """Create a stream, or find it there with the same configuration."""
        return await self._call(f"STREAM.CREATE.{config.name}", msgspec.json.encode(config), StreamInfo)

    async def create_consumer(self, stream: str, name: str, body: Mapping[str, object]) -> ConsumerInfo:
        """Create a consumer, or find it there with the same configuration."""
        request = {"stream_name": stream, "config": {"name": name, **body}}
        return await self._call(f"CONSUMER.CREATE.{stream}.{name}", msgspec.json.encode(request), ConsumerInfo)

    async def has_consumer(self, stream: str, name: str) -> bool:
        """Whether there is a consumer of that name."""
        try:
            await self._call(f"CONSUMER.INFO.{stream}.{name}", b"", ConsumerInfo)
        except ApiRefused as error:
            if error.err_code in {STREAM_NOT_FOUND, CONSUMER_NOT_FOUND}:
                return False
            raise
        return True

    async def purge(self, stream: str, subject: str, up_to: int, *, keep: int = 0) -> int:
        """Remove messages on a subject below and at a sequence (all but the last `keep`); return how many."""
        body: dict[str, object] = {"filter": subject}
        body |= {"keep": keep} if keep else {"seq": up_to + 1}
        answer = await self._call(f"STREAM.PURGE.{stream}", msgspec.json.encode(body), _Purged)
        return answer.purged

    async def purge_all(self, stream: str, subject: str) -> int:
        """Remove every message on a subject (wildcards allowed); return how many."""
        answer = await self._call(f"STREAM.PURGE.{stream}", msgspec.json.encode({"filter": subject}), _Purged)
        return answer.purged

    async def next_message(self, stream: str, subject: str, sequence: int) -> StoredMessage | None:
        """Return the first message on a subject at or after a sequence, asked of the stream's leader."""
        return await self._message(stream, {"seq": sequence, "next_by_subj": subject})

    async def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message on a subject, asked of the stream's leader."""
        return await self._message(stream, {"last_by_subj": subject})

    async def _message(self, stream: str, body: Mapping[str, object]) -> StoredMessage | None:
        try:
            answer = await self._call(f"STREAM.MSG.GET.{stream}", msgspec.json.encode(body), _MessageAnswer)
        except ApiRefused as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        found = answer.message
        return StoredMessage(
            subject=found.subject,
            sequence=found.seq,
            data=base64.b64decode(found.data),
            headers=parse_headers(base64.b64decode(found.hdrs)),
            stored_at_s=found.time.timestamp(),
        )

    async def _call(self, subject: str, body: bytes, kind: type[_Answer]) -> _Answer:
        full = f"$JS.API.{subject}"
        message = await self.connection.request(full, body, timeout_s=self.timeout_s)
        try:
            failure = msgspec.json.decode(message.data, type=_Failure)
            if failure.error is not None:
                raise ApiRefused(full, failure.error.code, failure.error.err_code, failure.error.description)
            return msgspec.json.decode(message.data, type=kind)
        except msgspec.DecodeError as error:
            raise Unanswered(full, f"the answer could not be read ({error})") from None


def parse_headers(block: bytes) -> dict[str, str]:
    """Read a block of headers as the server stores it."""
    headers: dict[str, str] = {}
    for line in block.split(b"\r\n")[1:]:
        name, separator, value = line.partition(b":")
        if separator:
            headers[name.strip().decode(errors="replace")] = value.strip().decode(errors="replace")
    return headers
