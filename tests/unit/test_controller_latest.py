"""What is shown: the newest only, one at a time, not too often, again until done, never over a newer one."""

import asyncio

from runfold.controller.latest import Document, Latest
from runfold.controller.ports import Unavailable
from support.virtual import run_virtual


class Done:
    """Notes values and when they were acted on; `fail` is how many acts fail first."""

    def __init__(self, fail: int = 0, takes_s: float = 0.0) -> None:
        self.seen: list[tuple[float, int]] = []
        self.fail = fail
        self.takes_s = takes_s

    async def act(self, value: int) -> None:
        await asyncio.sleep(self.takes_s)
        if self.fail:
            self.fail -= 1
            raise Unavailable("away")
        self.seen.append((round(asyncio.get_running_loop().time(), 3), value))


def test_the_first_goes_at_once_and_later_ones_are_coalesced() -> None:
    async def story() -> list[tuple[float, int]]:
        done = Done()
        latest = Latest[int](done.act, every_s=0.2)
        serving = asyncio.create_task(latest.serve())
        for value in range(10):
            latest.offer(value)
            await asyncio.sleep(0.03)
        await asyncio.sleep(1)
        serving.cancel()
        return done.seen

    assert run_virtual(story()) == [(0.0, 0), (0.2, 6), (0.4, 9)]


def test_what_must_go_at_once_does() -> None:
    async def story() -> list[tuple[float, int]]:
        done = Done()
        latest = Latest[int](done.act, every_s=10)
        serving = asyncio.create_task(latest.serve())
        latest.offer(1)
        await asyncio.sleep(0.1)
        latest.offer(2)
        await asyncio.sleep(0.1)
        latest.offer(3, at_once=True)
        await asyncio.sleep(0.1)
        serving.cancel()
        return done.seen

    assert run_virtual(story()) == [(0.0, 1), (0.2, 3)]


def test_a_failure_is_tried_again_with_the_newest_value() -> None:
    async def story() -> list[int]:
        done = Done(fail=2)
        latest = Latest[int](done.act)
        serving = asyncio.create_task(latest.serve())
        latest.offer(1)
        await asyncio.sleep(0.01)
        latest.offer(2)
        await latest.drained()
        serving.cancel()
        return [value for _, value in done.seen]

    assert run_virtual(story()) == [2]


def test_drained_waits_for_what_is_under_way_and_holds_nothing_back() -> None:
    async def story() -> tuple[float, list[int]]:
        done = Done(takes_s=0.5)
        latest = Latest[int](done.act, every_s=100)
        serving = asyncio.create_task(latest.serve())
        latest.offer(1)
        await asyncio.sleep(0.1)
        latest.offer(2)
        await latest.drained()
        serving.cancel()
        return asyncio.get_running_loop().time(), [value for _, value in done.seen]

    assert run_virtual(story()) == (1.0, [1, 2])


class Board:
    """A last-value document; `lose_answers` writes happen without an answer."""

    def __init__(self, data: bytes | None = None) -> None:
        self.data = data
        self.sequence = 0 if data is None else 41
        self.lose_answers = 0

    async def read(self) -> tuple[bytes | None, int]:
        return self.data, self.sequence

    async def write(self, data: bytes, last_sequence: int) -> int | None:
        if last_sequence != self.sequence:
            return None
        self.data, self.sequence = data, self.sequence + 1
        if self.lose_answers:
            self.lose_answers -= 1
            raise Unavailable("no answer")
        return self.sequence


def number(data: bytes) -> tuple[int, ...] | None:
    return (int(data),) if data.isdigit() else None


def test_a_document_replaces_an_older_one_and_what_cannot_be_read() -> None:
    async def story(standing: bytes | None) -> bytes | None:
        board = Board(standing)
        assert await Document(board, number).put(b"5", (5,))
        return board.data

    assert asyncio.run(story(None)) == b"5"
    assert asyncio.run(story(b"4")) == b"5"
    assert asyncio.run(story(b"nonsense")) == b"5"


def test_a_woken_writer_never_replaces_a_newer_document() -> None:
    async def story() -> tuple[bool, bytes | None]:
        board = Board(b"4")
        document = Document(board, number)
        await document.put(b"5", (5,))
        board.data, board.sequence = b"9", board.sequence + 1
        return await document.put(b"6", (6,)), board.data

    assert asyncio.run(story()) == (False, b"9")


def test_a_woken_writer_that_was_refused_once_is_refused_again() -> None:
    """It has read the newer document by then, and its sequence."""

    async def story() -> tuple[bool, bool, bytes | None]:
        board = Board(b"4")
        document = Document(board, number)
        await document.put(b"5", (5,))
        board.data, board.sequence = b"9", board.sequence + 1
        return await document.put(b"6", (6,)), await document.put(b"7", (7,)), board.data

    assert asyncio.run(story()) == (False, False, b"9")


def test_a_write_whose_answer_was_lost_is_not_a_clash() -> None:
    async def story() -> tuple[bool, int]:
        board = Board()
        board.lose_answers = 1
        document = Document(board, number, 0)
        try:
            await document.put(b"5", (5,))
        except Unavailable:
            pass
        return await document.put(b"5", (5,)), board.sequence

    assert asyncio.run(story()) == (True, 1)
