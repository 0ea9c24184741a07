"""Following a log as a client: link by link, and over its restoration into another generation."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from runfold.controller.compose import draft
from runfold.events.beats import RunnerBeat
from runfold.events.conclusions import LogCopied
from runfold.events.entry import Entry, Head, decode_entry, encode_entry, hash_entry
from runfold.events.nats.consume import Delivered
from runfold.events.state import RunState
from runfold.follow import Following, Told
from support.runs import Run


class Heard:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.state: RunState | None = None

    def entry(self, told: Told) -> None:
        self.entries.append(told.entry)
        self.state = told.state

    def beat(self, beat: RunnerBeat) -> None:
        pass


def message(data: bytes, generation: int = 1) -> Delivered:
    return Delivered(f"runfold.run.digits.log.{generation}", data, {}, 1, 0, 0.0)


def log_of(run: Run) -> list[bytes]:
    """The run's entries, linked."""
    lines: list[bytes] = []
    prev = "0" * 64
    for entry in run.entries:
        lines.append(encode_entry(replace(entry, prev=prev)))
        prev = hash_entry(lines[-1])
    return lines


def restored(run: Run, line: bytes, generation: int) -> bytes:
    copied = LogCopied(generation=generation, source="file:///a", epoch=run.state.epoch + 1, by="restore")
    head = Head(n=run.state.n, hash=hash_entry(line))
    return draft(run.state, head, (copied,), t=run.state.t, at="", by="restore", cursor=run.state.cursor).data


def test_each_entry_is_told_once_in_order_and_nothing_else() -> None:
    run = Run(2).running()
    lines = log_of(run)
    heard = Heard()
    following = Following("digits", (heard,))
    for data in (lines[1], *lines, b"stray", lines[2], *lines):
        following.take(message(data))
    assert [entry.n for entry in heard.entries] == list(range(len(lines)))
    assert following.state == run.state
    assert not following.ended.is_set()


def test_a_restored_log_is_followed_once_it_is_whole() -> None:
    run = Run(2).running()
    lines = log_of(run)
    last = decode_entry(lines[-1])
    lost = encode_entry(replace(last, n=last.n + 1, prev=hash_entry(lines[-1]), inputs=(), transitions=()))
    heard = Heard()
    following = Following("digits", (heard,))
    for data in (*lines, lost):
        following.take(message(data))
    for data in lines:
        following.take(message(data, 2))
    assert [entry.n for entry in heard.entries] == list(range(len(lines) + 1))
    following.take(message(restored(run, lines[-1], 2), 2))
    assert heard.entries[-1].epoch == run.state.epoch + 1
    assert following.state is not None
    assert following.state.restored is not None
    after = encode_entry(replace(last, n=last.n + 2, prev=hash_entry(lost), inputs=(), transitions=()))
    following.take(message(after, 1))
    assert following.state.n == last.n + 1


def test_a_copy_that_is_not_finished_is_not_followed() -> None:
    run = Run(2).running()
    lines = log_of(run)
    heard = Heard()
    following = Following("digits", (heard,))
    for data in lines[:3]:
        following.take(message(data, 2))
    for data in lines:
        following.take(message(data))
    following.take(message(b"{}", 2))
    following.take(Delivered("elsewhere", lines[0], {}, 1, 0, 0.0))
    assert following.state == run.state
    assert len(heard.entries) == len(lines)


def test_the_run_of_another_job_is_not_followed() -> None:
    run = Run(2).running()
    heard = Heard()
    following = Following("digits", (heard,), digest="another")
    for data in log_of(run):
        following.take(message(data))
    assert following.state is None
    assert heard.entries == []


class Full:
    """Prints to a disk that is full."""

    def entry(self, told: Told) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def beat(self, beat: RunnerBeat) -> None:
        raise AssertionError("it is told nothing more")


async def test_what_an_onlooker_raises_reaches_who_waits_for_the_end() -> None:
    following = Following("digits", (Full(),))
    for data in log_of(Run(2).running()):
        following.take(message(data))
    with pytest.raises(OSError, match="No space left"):
        await following.wait_ended()


async def test_a_bug_in_an_onlooker_hides_no_end() -> None:
    class Broken(Full):
        def entry(self, told: Told) -> None:
            if told.state.terminal:
                raise ZeroDivisionError

    following = Following("digits", (Broken(),))
    run = Run(2).running().finishing()
    *before, last = log_of(run.says(run.released()))
    for data in before:
        following.take(message(data))
    with pytest.raises(ZeroDivisionError):
        following.take(message(last))
    assert (await following.wait_ended()).terminal
