"""Nothing from a log reaches the terminal unescaped."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.replay.escape import safe, safe_lines, to_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 漢字", "plain äöü 漢字"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("ab\u202ecd", "ab\\u202ecd"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_control_and_direction_characters_are_shown(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_lines_are_kept_as_lines() -> None:
    assert safe_lines("a\r\n\tb\x1b\nc") == ["a", "    b\\x1b", "c"]


@given(st.text())
def test_json_says_the_same_and_nothing_unsafe(text: str) -> None:
    data = to_json({"text": text})
    assert msgspec.json.decode(data) == {"text": text}
    shown = data.decode()
    assert safe(shown) == shown
