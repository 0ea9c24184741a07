"""Nothing that came over the wire reaches a log line as it is."""

import pytest

from runfold.controller.safe import SHOWN_MAX_COUNT, root_of, shown, shown_error


@pytest.mark.parametrize(
    "text",
    ["two\nlines", "\x1b[2Jclear", "carriage\rreturn", "nul\x00", "\u2028separator", "\u202eright to left", "\x9bCSI"],
)
def test_control_characters_are_escaped(text: str) -> None:
    line = shown(text)
    assert line.isprintable()
    assert line != text


def test_plain_text_is_left_alone() -> None:
    assert shown("rank 1 failed: Fehler – übel 😀") == "rank 1 failed: Fehler – übel 😀"


def test_a_backslash_cannot_pass_for_an_escape() -> None:
    assert shown("\\n") == "\\\\n"


def test_long_text_is_cut() -> None:
    assert len(shown("x" * 10_000_000)) == SHOWN_MAX_COUNT
    assert shown("\n" * 1000).endswith("…")


def test_a_traceback_keeps_its_lines_and_escapes_each() -> None:
    try:
        raise ValueError("fake\nERROR forged line\x1b[31m")
    except ValueError as error:
        text = shown_error(error)
    assert "Traceback" in text
    assert "\x1b" not in text


def test_the_first_error_of_a_group_is_named() -> None:
    group = ExceptionGroup("all", [ExceptionGroup("inner", [KeyError("x")]), ValueError("y")])
    assert root_of(group) == "KeyError: 'x'"
