"""Older envelopes made readable: one step per version, applied until the version is the current one.

A step maps the JSON object of version v to that of version v + 1. Stored bytes are never rewritten; hashes are
always taken of the bytes as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from runfold.events.base import WIRE_VERSION, Json

Step = Callable[[dict[str, Json]], dict[str, Json]]


def _from_0(envelope: dict[str, Json]) -> dict[str, Json]:
    """Version 0 had no `epoch` (there was one controller for ever) and called `by` `controller`."""
    raised = dict(envelope)
    raised["by"] = raised.pop("controller", raised.get("by", ""))
    raised.setdefault("epoch", 1)
    return raised


STEPS: Final[Mapping[int, Step]] = MappingProxyType({0: _from_0})
"""Version → the step to the next one."""


def upcast(data: bytes) -> bytes:
    """Return the bytes of an envelope in the current version's form.

    Raises `msgspec.ValidationError` when this program knows no way there.
    """
    envelope = msgspec.json.decode(data, type=dict[str, Json])
    version = envelope.get("v")
    if version == WIRE_VERSION:
        return data
    while isinstance(version, int) and version in STEPS:
        envelope = {**STEPS[version](envelope), "v": version + 1}
        version += 1
    if version != WIRE_VERSION:
        raise msgspec.ValidationError(
            f"version {version!r} cannot be read by this runfold (it reads 0 to {WIRE_VERSION})"
        )
    return msgspec.json.encode(envelope)
