"""A log of ours has one line a message, whatever users wrote that is quoted in it."""

from __future__ import annotations

import logging

from runfold.workers.logs import LineFormatter

HOSTILE = "a\x1b[2J\nforged\r\u202e"


def line(message: str, error: BaseException | None = None) -> str:
    caught = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("runfold", logging.INFO, __file__, 1, "run %s ends", (message,), caught)
    return LineFormatter("%(levelname)s %(message)s").format(record)


def test_a_message_stays_on_its_line() -> None:
    assert line(HOSTILE) == r"INFO run a\x1b[2J\nforged\r\u202e ends"
    assert line("plain äöü") == "INFO run plain äöü ends"


def test_a_traceback_keeps_its_lines_and_no_character_that_harms() -> None:
    shown = line("digits", ValueError(HOSTILE)).split("\n")
    assert shown[0] == "INFO run digits ends"
    assert shown[1:] == [r"ValueError: a\x1b[2J", r"forged\r\u202e"]
