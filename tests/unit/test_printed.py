"""What ranks print beside a run's progress: standard output alone, as many lines as somebody can read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from runfold import printed
from runfold.client import Client
from runfold.events.output import OutputBatch, OutputLine, OutputSource
from runfold.printed import LINE_CHARS_MAX, LINE_EVERY_S, LINES_BURST_MAX, Printed, output_line


def batch(*texts: str, rank: int = 0, source: OutputSource = "stdout") -> bytes:
    lines = tuple(OutputLine(time_s=0.0, source=source, text=text) for text in texts)
    return msgspec.json.encode(OutputBatch(run="r", attempt=1, rank=rank, node="n", number=1, lines=lines))


class Shown:
    """What was shown, at a time that a test says."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now_s = 0.0
        self.printed = Printed("runfold logs r", self.lines.append, lambda: self.now_s)


def test_a_line_says_whose_it_is() -> None:
    shown = Shown()
    shown.printed.take(batch("hello", rank=3))
    assert shown.lines == [output_line(3, "hello")]
    assert "[rank 3]" in shown.lines[0]


def test_standard_error_and_what_cannot_be_read_are_left_to_logs() -> None:
    shown = Shown()
    shown.printed.take(batch("a warning", source="stderr"))
    shown.printed.take(b"\xff")
    shown.printed.close()
    assert shown.lines == []


def test_more_than_can_be_read_is_counted() -> None:
    shown = Shown()
    shown.printed.take(batch(*map(str, range(LINES_BURST_MAX + 7))))
    assert len(shown.lines) == LINES_BURST_MAX
    shown.now_s = 2 * LINE_EVERY_S
    shown.printed.take(batch("later"))
    assert "7 lines not shown: runfold logs r" in shown.lines[-2]
    assert shown.lines[-1] == output_line(0, "later")
    shown.printed.close()
    assert len(shown.lines) == LINES_BURST_MAX + 2


def test_a_line_can_take_no_terminal_over_and_is_cut() -> None:
    assert "\x1b" not in output_line(0, "\x1b[2J")
    assert len(output_line(0, "x" * 9999)) < LINE_CHARS_MAX + 40


@pytest.mark.parametrize("caught_up", [True, False])
def test_it_is_said_when_the_last_lines_do_not_come(monkeypatch: pytest.MonkeyPatch, *, caught_up: bool) -> None:
    shown: list[str] = []
    waited: list[float] = []

    async def wait_caught_up(timeout_s: float) -> bool:
        waited.append(timeout_s)
        return caught_up

    async def close() -> None:
        return None

    async def story() -> None:
        client = cast("Client", SimpleNamespace(connection=None))
        async with printed.output_shown(client, "r", "runfold logs r", shown.append):
            pass

    follower = SimpleNamespace(wait_caught_up=wait_caught_up, close=close)
    monkeypatch.setattr(printed, "follow_output", lambda *_: follower)
    asyncio.run(story())
    assert waited == [printed.DRAIN_TIMEOUT_S]
    assert [line.strip() for line in shown] == (
        [] if caught_up else ["… the last lines may not be shown: runfold logs r"]
    )
