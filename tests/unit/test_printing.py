"""What is missing of a rank's output is said in lines and bytes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from runfold.cli import logs
from runfold.cli.logs import Printer
from runfold.client import Client
from runfold.events.output import OutputBatch, OutputLine


def batch(number: int, *, lines_before: int = 0, cut_bytes: int = 0) -> bytes:
    line = OutputLine(time_s=0.0, source="stdout", text=f"line {number}")
    made = OutputBatch(
        run="digits-1",
        attempt=1,
        rank=0,
        node="local",
        number=number,
        lines=(line,),
        cut_bytes=cut_bytes,
        lines_before=lines_before,
    )
    return msgspec.json.encode(made)


def test_lines_no_longer_kept_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(None, as_json=False)
    for data in (batch(3, lines_before=20), batch(4, lines_before=21), batch(6, lines_before=30, cut_bytes=7)):
        printer.take(data)
    notes = [line.partition("…")[2].strip() for line in capsys.readouterr().out.splitlines() if "…" in line]
    assert notes == [
        "20 lines of earlier output are no longer kept",
        "8 lines of earlier output are no longer kept",
        "7 bytes were printed faster than they are kept",
    ]


def test_of_older_logs_it_is_only_said_that_some_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(None, as_json=False).take(batch(3))
    assert "some lines of earlier output are no longer kept" in capsys.readouterr().out


@pytest.mark.parametrize("caught_up", [True, False])
def test_who_follows_is_told_when_the_end_of_the_output_does_not_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, caught_up: bool
) -> None:
    waited: list[float] = []

    async def wait_caught_up(timeout_s: float) -> bool:
        waited.append(timeout_s)
        return caught_up

    async def nothing(*_: object) -> None:
        return None

    follower = SimpleNamespace(wait_caught_up=wait_caught_up, close=nothing)
    monkeypatch.setattr(logs, "follow_output", lambda *_: follower)
    monkeypatch.setattr(logs, "_until_ended", nothing)
    client = cast("Client", SimpleNamespace(connection=None))
    asyncio.run(logs._follow(client, "digits-1", Printer(None, as_json=False), "runfold logs digits-1"))
    assert waited == [logs.DRAIN_TIMEOUT_S]
    err = capsys.readouterr().err
    assert ("may not be all that was printed. Ask again: runfold logs digits-1" in err) is not caught_up
