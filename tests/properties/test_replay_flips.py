"""Whatever byte of an exported file is changed, added or lost: the audit finds it, the last line included."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runfold.replay.audit import audit
from runfold.replay.export import read_export
from support.histories import exported, failing_run

DATA = exported(failing_run())
LAST = DATA.rstrip(b"\n").rfind(b"\n") + 1


def clean(data: bytes) -> bool:
    """Whether the audit finds nothing."""
    return audit(read_export(data, "run.jsonl")).clean


def test_the_file_itself_is_clean() -> None:
    assert clean(DATA)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
@example(len(DATA) - 1, 1)
@settings(deadline=None, max_examples=300)
def test_any_byte_flipped_is_found(place: int, mask: int) -> None:
    assert not clean(DATA[:place] + bytes([DATA[place] ^ mask]) + DATA[place + 1 :])


@pytest.mark.parametrize("mask", [0x01, 0x10, 0x20], ids=["a bit", "another digit", "another case"])
def test_every_byte_of_the_last_line_flipped_is_found(mask: int) -> None:
    """The last line is kept by nothing behind it: each of its bytes must matter by itself."""
    unseen = [
        place
        for place in range(LAST, len(DATA))
        if clean(DATA[:place] + bytes([DATA[place] ^ mask]) + DATA[place + 1 :])
    ]
    assert unseen == []


@given(st.integers(0, len(DATA)), st.binary(min_size=1, max_size=40))
@settings(deadline=None)
def test_anything_put_in_is_found(place: int, extra: bytes) -> None:
    assert not clean(DATA[:place] + extra + DATA[place:])


@given(st.integers(0, len(DATA) - 1), st.integers(1, 4000))
@settings(deadline=None)
def test_anything_left_out_is_found(start: int, size: int) -> None:
    assert not clean(DATA[:start] + DATA[start + size :])
