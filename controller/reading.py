"""What arrived in the inbox, read into inputs: one decode a message. The unreadable becomes an input that says so."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from runfold.controller.ports import Delivered
from runfold.events.base import Json, Origin
from runfold.events.conclusions import MessageMalformed
from runfold.events.entry import AnyInput
from runfold.events.facts import AnyFact, CheckpointSealed, FactMessage, RankReturned, Reported, TaskEnded
from runfold.events.limits import FACT_MESSAGE_MAX_BYTES, REQUEST_MAX_BYTES, VALUE_DEPTH_MAX_COUNT
from runfold.events.requests import REQUEST_VERBS, AnyRequest, Request
from runfold.events.strict import Refused, decode_strict
from runfold.events.subjects import FactSubject, RequestSubject, Subjects

REQUEST_ID_MAX_COUNT: Final = 128
"""Longest id of a request, in characters: the state keeps many of them."""

REASON_MAX_COUNT: Final = 300
"""Longest reason kept of an unreadable message, in characters."""

SUBJECT_MAX_COUNT: Final = 256

PACKED_DEPTH_MAX_COUNT: Final = 2 * VALUE_DEPTH_MAX_COUNT
"""Deepest value in its packed form, where each level may be wrapped once (`{"dict": …}`)."""

_facts: Final = msgspec.json.Decoder(FactMessage)


@dataclass(frozen=True, slots=True)
class Reading:
    """One message of the inbox as inputs. `decisive`: it may change a decision, so it does not linger."""

    identity: str
    sequence: int
    inputs: tuple[AnyInput, ...]
    size_bytes: int
    decisive: bool


class _Unreadable(ValueError):
    """Why a message could not be read."""


def read_delivered(delivered: Delivered, run: str, subjects: Subjects) -> Reading:
    """Return the inputs of a message; never raises."""
    inputs: tuple[AnyInput, ...]
    try:
        inputs = _read(delivered, run, subjects)
    except _Unreadable as error:
        inputs = (_malformed(delivered, str(error)),)
    return Reading(
        identity=delivered.identity,
        sequence=delivered.sequence,
        inputs=inputs,
        size_bytes=len(delivered.data),
        decisive=any(_is_decisive(item) for item in inputs),
    )


def _is_decisive(item: AnyInput) -> bool:
    return item.decisive if isinstance(item, Reported) else not isinstance(item, MessageMalformed)


def _read(delivered: Delivered, run: str, subjects: Subjects) -> tuple[AnyInput, ...]:
    match subjects.parse_inbox(delivered.subject):
        case FactSubject(source=source) as subject if subject.run == run:
            return _read_facts(delivered, run, source)
        case RequestSubject(verb=verb) as subject if subject.run == run:
            return (_read_request(delivered, verb),)
        case _:
            raise _Unreadable("the subject is none of this run's facts and requests")


def _read_facts(delivered: Delivered, run: str, source: str) -> tuple[AnyFact, ...]:
    if len(delivered.data) > FACT_MESSAGE_MAX_BYTES:
        raise _Unreadable(f"{len(delivered.data)} bytes, more than fact_message_max_bytes ({FACT_MESSAGE_MAX_BYTES})")
    try:
        message = _facts.decode(delivered.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _Unreadable(str(error)) from None
    except RecursionError:
        raise _Unreadable("nested too deeply") from None
    if message.run != run:
        raise _Unreadable(f"speaks of run {message.run!r} on the subject of {run!r}")
    for fact in message.facts:
        if fact.source != source:
            raise _Unreadable(f"source {fact.source!r} on the subject of {source!r}")
        _check_depth(fact)
    sequence = delivered.sequence
    return tuple(replace(fact, origin=Origin(inbox=sequence, k=k)) for k, fact in enumerate(message.facts))


def _read_request(delivered: Delivered, verb: str) -> AnyRequest:
    kind = REQUEST_VERBS.get(verb)
    if kind is None:
        raise _Unreadable(f"no request is called {verb!r}; known are {', '.join(REQUEST_VERBS)}")
    if len(delivered.data) > REQUEST_MAX_BYTES:
        raise _Unreadable(f"{len(delivered.data)} bytes, more than request_max_bytes ({REQUEST_MAX_BYTES})")
    try:
        request = decode_strict(delivered.data, kind)
    except Refused as error:
        raise _Unreadable(str(error)) from None
    if not 0 < len(request.id) <= REQUEST_ID_MAX_COUNT:
        raise _Unreadable(f"$.id: must have 1 to {REQUEST_ID_MAX_COUNT} characters")
    return _known(replace(request, origin=Origin(inbox=delivered.sequence)))


def _known(request: Request) -> AnyRequest:
    """Narrow a request to the union: `REQUEST_VERBS` holds nothing else."""
    if not isinstance(request, AnyRequest):
        raise _Unreadable(f"no request is called {type(request).__name__!r}")
    return request


def _check_depth(fact: AnyFact) -> None:
    value: Json = None
    if isinstance(fact, Reported | CheckpointSealed):
        value = fact.metrics
    elif isinstance(fact, RankReturned | TaskEnded):
        value = fact.value
    if _deeper(value, PACKED_DEPTH_MAX_COUNT):
        raise _Unreadable(f"fact {fact.number} holds a value nested more than {VALUE_DEPTH_MAX_COUNT} deep")


def _deeper(value: Json, levels: int) -> bool:
    """Whether a value is nested deeper than `levels`: what is read here must be readable everywhere."""
    if isinstance(value, dict):
        return levels <= 0 or any(_deeper(item, levels - 1) for item in value.values())
    if isinstance(value, list):
        return levels <= 0 or any(_deeper(item, levels - 1) for item in value)
    return False


def _malformed(delivered: Delivered, reason: str) -> MessageMalformed:
    return MessageMalformed(
        subject=delivered.subject[:SUBJECT_MAX_COUNT],
        reason=reason if len(reason) <= REASON_MAX_COUNT else reason[: REASON_MAX_COUNT - 1] + "…",
        digest=hashlib.sha256(delivered.data).hexdigest(),
        origin=Origin(inbox=delivered.sequence),
    )
