"""The entry: one message of the log, the unit of durability, and the chain that links it to the one before."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from runfold.events.base import WIRE_VERSION, Document, Unknown, Value
from runfold.events.conclusions import AnyConclusion
from runfold.events.facts import AnyFact
from runfold.events.requests import AnyRequest
from runfold.events.transitions import AnyTransition
from runfold.events.upcast import upcast

AnyInput = AnyFact | AnyRequest | AnyConclusion

GENESIS: Final = "0" * 64
"""`prev` of entry 0."""


class Head(Value, frozen=True, kw_only=True):
    """The newest entry: its number and the SHA-256 (hex) of its bytes."""

    n: int
    hash: str


class Entry(Document, frozen=True, kw_only=True):
    """The inputs looked at and the transitions decided on them.

    `t`: seconds since entry 0 on the run's clock, never decreasing. `at`: RFC 3339 UTC, for people.
    `cursor`: (INBOX identity, last sequence folded), None before anything was read.
    `prev`: SHA-256 (hex) of the previous entry's bytes, exactly as stored.
    """

    v: int
    run: str
    n: int
    t: float
    at: str
    by: str
    epoch: int
    cursor: tuple[str, int] | None
    inputs: tuple[AnyInput, ...]
    transitions: tuple[AnyTransition, ...]
    prev: str


class _Lenient(msgspec.Struct, frozen=True):
    inputs: tuple[msgspec.Raw, ...]
    transitions: tuple[msgspec.Raw, ...]


class _Kind(msgspec.Struct, frozen=True):
    kind: str


class _Link(msgspec.Struct, frozen=True):
    run: str
    n: int
    prev: str


class NotAnEntry(ValueError):
    """Bytes that are no entry of any version this program can read; says why."""


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Entry)
_INPUT: Final = msgspec.json.Decoder(AnyInput)
_TRANSITION: Final = msgspec.json.Decoder(AnyTransition)
_LENIENT: Final = msgspec.json.Decoder(_Lenient)
_KIND: Final = msgspec.json.Decoder(_Kind)
_LINK: Final = msgspec.json.Decoder(_Link)
_UNREADABLE: Final = (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_KNOWN: Final = frozenset(kind.__struct_config__.tag for union in (AnyInput, AnyTransition) for kind in union.__args__)


def hash_entry(data: bytes) -> str:
    """Return the SHA-256 (hex) of an entry's bytes."""
    return hashlib.sha256(data).hexdigest()


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry as stored."""
    return _ENCODER.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """Return the entry of these bytes; kinds unknown to this version are left out (see `unknown_kinds`).

    Raises `NotAnEntry` for anything else than an entry of a version that can be read.
    """
    try:
        entry = _DECODER.decode(data)
    except _UNREADABLE:
        return _decode_leniently(data)
    # Another version's envelope may happen to have the shape of this one's.
    return entry if entry.v == WIRE_VERSION else _decode_leniently(data)


def is_link(data: bytes, run: str, n: int, prev: str) -> bool:
    """Say whether these bytes are a run's entry `n` behind `prev`, whatever else they say and whoever wrote them."""
    try:
        link = _LINK.decode(data)
    except _UNREADABLE:
        return False
    return (link.run, link.n, link.prev) == (run, n, prev)


def unknown_kinds(data: bytes) -> tuple[Unknown, ...]:
    """Return the inputs and transitions of these bytes that this version does not know."""
    parts = _LENIENT.decode(data)
    found = ((_KIND.decode(raw).kind, bytes(raw)) for raw in (*parts.inputs, *parts.transitions))
    return tuple(Unknown(known_as=kind, raw=raw) for kind, raw in found if kind not in _KNOWN)


def _decode_leniently(data: bytes) -> Entry:
    try:
        data = upcast(data)
        parts = _LENIENT.decode(data)
        whole = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        inputs = tuple(_INPUT.decode(raw) for raw in parts.inputs if _KIND.decode(raw).kind in _KNOWN)
        transitions = tuple(_TRANSITION.decode(raw) for raw in parts.transitions if _KIND.decode(raw).kind in _KNOWN)
        shell = {**whole, "inputs": msgspec.Raw(b"[]"), "transitions": msgspec.Raw(b"[]")}
        entry = _DECODER.decode(msgspec.json.encode(shell))
    except _UNREADABLE as error:
        raise NotAnEntry(f"not an entry: {error}") from None
    return msgspec.structs.replace(entry, inputs=inputs, transitions=transitions)
