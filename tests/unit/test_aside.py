"""A process of user code beside the group: whatever comes over its link is no more than an answer, or its end."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import cast

import msgspec
import pytest

from runfold.workers.aside import Aside
from runfold.workers.frames import HEADER, frame
from runfold.workers.keeper import KEEPER_FRAME_MAX_BYTES
from runfold.workers.outside import Question, Said
from runfold.workers.processes import Exit
from runfold.workers.spawner import Child

PID = 4711


class Process:
    """What of a child is asked: it lives until it is killed."""

    pid = PID

    def __init__(self) -> None:
        self.ended: Exit | None = None
        self._gone = asyncio.Event()

    async def kill(self, number: int = signal.SIGKILL, *, group: bool = True) -> bool:
        assert group, "what it has started must go with it"
        self.ended = Exit(pid=PID, signal=number)
        self._gone.set()
        return True

    async def wait(self) -> Exit:
        await self._gone.wait()
        assert self.ended is not None
        return self.ended


async def answered(data: bytes) -> tuple[Said, Process]:
    """What is told when a process answers a question with these bytes."""
    near, far = socket.socketpair()
    process = Process()
    with far:
        aside = Aside(cast("Child", process), *await asyncio.open_connection(sock=near))
        far.sendall(data)
        said = await aside.ask(Question(hook="after_report"))
        await aside.end()
    return said, process


async def test_an_answer_is_returned_and_the_process_lives_until_it_is_ended() -> None:
    said, process = await answered(frame(msgspec.msgpack.encode(Said(value={"loss": 1.0})), KEEPER_FRAME_MAX_BYTES))
    assert said == Said(value={"loss": 1.0})
    assert process.ended == Exit(pid=PID, signal=signal.SIGKILL)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HEADER.pack(KEEPER_FRAME_MAX_BYTES + 1), "over the limit"),
        (frame(b"\xc1", 10), "its answer is no message"),
        (b"printed to the link", "over the limit"),
    ],
    ids=["too long", "no message", "text"],
)
async def test_what_is_no_answer_costs_the_process_its_life(data: bytes, words: str) -> None:
    said, process = await answered(data)
    assert said.error is not None
    assert (said.error.type, words in said.error.message) == ("LinkError", True)
    assert process.ended is not None
