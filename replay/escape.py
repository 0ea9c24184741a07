"""What comes from a log is made harmless before it reaches a terminal, as text (`runfold.events.escape`) or as JSON."""

from __future__ import annotations

import re

import msgspec

from runfold.events.escape import UNSAFE, safe, safe_lines

__all__ = ["safe", "safe_lines", "to_json"]


def to_json(value: object) -> bytes:
    """Return a document as JSON that is safe on a terminal: what JSON itself does not escape is escaped as well."""
    text = msgspec.json.encode(value).decode()
    return (UNSAFE.sub(_escaped, text) if UNSAFE.search(text) else text).encode()


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
