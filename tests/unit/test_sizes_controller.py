"""What a controller takes, tries and keeps at once has its limit: what is beyond waits, and none is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from runfold.controller.ears import Ears
from runfold.controller.latest import CONTESTED_MAX_COUNT, Document
from runfold.controller.ports import Delivered, Unavailable
from runfold.controller.reading import SUBJECT_MAX_COUNT, Reading, read_delivered
from runfold.controller.waiting import WAITING_MAX_BYTES, Waiting
from runfold.events.conclusions import MessageMalformed
from runfold.events.job import encode_job
from runfold.events.nats.names import Names
from runfold.events.subjects import Subjects
from runfold.events.tasks import DELETE
from support.hosting import hosting, job, taken
from support.memory_ports import MemoryWorld
from support.runs import Run
from support.virtual import run_virtual
from support.waiting import until

if TYPE_CHECKING:
    from runfold.events.nats.connection import Connection

A_WHILE_S = 5.0


# --- what is taken


def test_bytes_taken_ahead_of_an_entry_are_limited_and_none_is_lost() -> None:
    waiting = Waiting(None)
    piece = WAITING_MAX_BYTES // 4
    full: list[bool] = []
    for sequence in range(1, 5):
        waiting.add(Reading("inbox-1", sequence, (), piece, decisive=False), 0.0)
        full.append(waiting.full)
    run = Run(1).running()
    waiting.remove(waiting.select(run.state), 0.0)
    assert [*full, waiting.full] == [False, False, False, True, False]
    assert waiting.cursor == ("inbox-1", 4)


@pytest.mark.parametrize("beyond", [0, 100])
def test_the_subject_of_what_cannot_be_read_is_kept_up_to_a_length(beyond: int) -> None:
    start = "runfold.run.digits.fact.1."
    subject = start + "s" * (SUBJECT_MAX_COUNT - len(start) + beyond)
    (found,) = read_delivered(Delivered("inbox-1", 7, subject, b"nonsense"), "digits", Subjects()).inputs
    assert isinstance(found, MessageMalformed)
    assert found.subject == subject[:SUBJECT_MAX_COUNT]


def test_so_many_jobs_are_made_runs_at_once_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runfold.controller.intake.TAKEN_AT_ONCE_MAX", 3)

    async def story() -> None:
        world = MemoryWorld()
        logs = [world.of(f"run-{k}").log for k in range(5)]
        for log in logs:
            log.gate.clear()
        async with hosting(world):
            for k in range(5):
                world.jobs.publish(encode_job(job(f"run-{k}")))
            await asyncio.sleep(A_WHILE_S)
            assert [bool(log.tried) for log in logs] == [True, True, True, False, False]
            assert world.jobs.acked == []
            for log in logs:
                log.gate.set()
            await until(lambda: len(world.jobs.acked) == 5)

    run_virtual(story())


def test_so_many_runs_are_taken_over_at_once_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runfold.controller.host.TAKEOVERS_AT_ONCE_MAX", 2)

    async def story() -> None:
        world = MemoryWorld()
        async with hosting(world) as first:
            runs = [await taken(world, job(f"run-{k}")) for k in range(5)]
            await first.die()
        before = [len(run.log.tried) for run in runs]
        for run in runs:
            run.log.gate.clear()
        async with hosting(world):
            await asyncio.sleep(A_WHILE_S)
            assert sum(len(run.log.tried) > n for run, n in zip(runs, before, strict=True)) == 2
            for run in runs:
                run.log.gate.set()
            await until(lambda: all(len(run.log.tried) > n for run, n in zip(runs, before, strict=True)))

    run_virtual(story())


class _Deaf:
    """A connection over which nothing comes."""

    names = Names()
    is_up, generation, dropped_count = True, 1, 0

    async def subscribe(self, subject: str, callback: object) -> tuple[str, object]:
        return subject, callback

    async def unsubscribe(self, subscription: object) -> None:
        pass

    async def ready(self, timeout_s: float) -> None:
        pass


def test_others_get_their_turn_between_the_ticks_of_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runfold.controller.ears.RUNS_PER_TURN_MAX", 3)
    order: list[str] = []

    async def story() -> None:
        others: list[asyncio.Task[None]] = []

        async def another() -> None:
            order.append("another")

        def tick(*_: object) -> None:
            if not others:
                others.append(asyncio.create_task(another()))
            order.append("tick")

        ears = Ears(cast("Connection", _Deaf()))
        for k in range(8):
            await ears.run(f"run-{k}").open("local", tick)
        await until(lambda: len(order) >= 9)
        await ears.close()

    run_virtual(story())
    assert order[:9] == ["tick"] * 3 + ["another"] + ["tick"] * 5


# --- what is tried again


class _Contested:
    """A document that another writer changes before each of the first `times` writes."""

    def __init__(self, times: int) -> None:
        self.data = b"1"
        self.sequence: int = 1
        self.times: int = times

    async def read(self) -> tuple[bytes | None, int]:
        return self.data, self.sequence

    async def write(self, data: bytes, last_sequence: int) -> int | None:
        if self.times:
            self.times -= 1
            self.sequence += 1
        if last_sequence != self.sequence:
            return None
        self.data, self.sequence = data, self.sequence + 1
        return self.sequence


def test_a_document_that_others_keep_writing_is_tried_so_often_and_stays_theirs() -> None:
    def order(data: bytes) -> tuple[int, ...]:
        return (int(data),)

    almost, always = _Contested(CONTESTED_MAX_COUNT - 1), _Contested(CONTESTED_MAX_COUNT)
    assert asyncio.run(Document(almost, order).put(b"5", (5,)))
    assert almost.data == b"5"
    with pytest.raises(Unavailable, match=f"another writer came first {CONTESTED_MAX_COUNT} times in a row"):
        asyncio.run(Document(always, order).put(b"5", (5,)))
    assert always.data == b"1"


# --- what is deleted


def test_so_many_directories_are_deleted_by_one_order_and_the_others_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runfold.controller.keeping.NAMES_AT_ONCE_MAX", 2)
    run = Run(2).running()
    for index in range(5):
        run.says(run.shard(0, index))
    run.says(run.failed(1))
    orders = [one.task.arguments["names"] for one in run.state.tasks if one.task.kind == DELETE]
    assert orders == [
        ["checkpoint_000000_1", "checkpoint_000001_1"],
        ["checkpoint_000002_1", "checkpoint_000003_1"],
        ["checkpoint_000004_1"],
    ]
