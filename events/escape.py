"""What users wrote is made harmless before it reaches a terminal or a line of a log file.

Control characters move the cursor, change colours and titles, or hide text; so do the marks that turn the direction
of writing. All of them are shown as escapes instead. This is the only place that does it.
"""

from __future__ import annotations

import re
from typing import Final

UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def safe(text: str) -> str:
    """Return text on one line, every control and direction character shown as an escape."""
    return UNSAFE.sub(_shown, text) if UNSAFE.search(text) else text


def safe_lines(text: str) -> list[str]:
    """Return the lines of a text, each safe; tabs become four spaces."""
    return [safe(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n")]


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    if named:
        return named
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
