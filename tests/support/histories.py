"""Runs for replay to read: inputs said by hand, decided by the default policies, through the real encoder and chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypedDict

from runfold.controller.decide import decide
from runfold.events.base import Json, Origin
from runfold.events.conclusions import ControllerStarted, JobTaken
from runfold.events.config import FailureConfig, ScalingConfig
from runfold.events.entry import GENESIS, AnyInput, Entry, encode_entry, hash_entry
from runfold.events.facts import (
    CapacityChanged,
    Placed,
    PlaceOffer,
    RankExited,
    RankFailed,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerReady,
)
from runfold.events.failures import ErrorInfo
from runfold.events.fold import fold
from runfold.events.job import Job, job_digest
from runfold.events.requests import Join
from runfold.events.state import RunState, Unborn
from runfold.events.transitions import AnyTransition
from runfold.replay.export import export_lines
from runfold.replay.history import History, Raw, Where, link_up
from runfold.replay.verify import present_decider

RUN = "digits-7k2"
START = datetime(2026, 11, 30, 5, 35, tzinfo=UTC)
DECIDER = present_decider()
JOB = Job(
    id=RUN,
    name="digits",
    entrypoint="examples/digits.py:train",
    scaling=ScalingConfig(num_workers=2),
    failure=FailureConfig(max_failures=1),
    working_dir=".",
)
TRACEBACK = (
    'Traceback (most recent call last):\n  File "examples/digits.py", line 42, in train\n'
    '    raise RuntimeError("boom")\nRuntimeError: boom\n'
)
BOOM = ErrorInfo(
    type="RuntimeError", message="boom", kind="user", traceback=TRACEBACK, where="examples/digits.py:42 in train"
)

Step = tuple[float, Sequence[AnyInput], Sequence[AnyTransition]]


def at(t: float) -> str:
    """RFC 3339 of a moment of the run's clock."""
    return (START + timedelta(seconds=t)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def chained(steps: Iterable[Step], run: str = RUN) -> list[bytes]:
    """The bytes of entries with these times, inputs and transitions, linked."""
    written: list[bytes] = []
    prev = GENESIS
    for n, step in enumerate(steps):
        written.append(encode_entry(_entry(n, step, prev, run)))
        prev = hash_entry(written[-1])
    return written


def _entry(n: int, step: Step, prev: str = GENESIS, run: str = RUN) -> Entry:
    t, inputs, transitions = step
    return Entry(
        v=1,
        run=run,
        n=n,
        t=t,
        at=at(t),
        by="ctl-a1",
        epoch=1,
        cursor=("inbox", n) if n else None,
        inputs=tuple(inputs),
        transitions=tuple(transitions),
        prev=prev,
    )


def history(lines: Iterable[bytes], run: str | None = None) -> History:
    """These entries as read from a stream."""
    raws = [Raw(data=line, where=Where(file="the log", sequence=k)) for k, line in enumerate(lines, 1)]
    linked = link_up(raws, run)
    return History(
        target="the log",
        kind="stream",
        run=linked.run,
        links=linked.links,
        strays=linked.strays,
        damages=linked.damages,
    )


def exported(lines: Iterable[bytes]) -> bytes:
    """These entries as an exported file."""
    return b"".join(export_lines(history(lines)))


class _Head(TypedDict):
    source: str
    incarnation: int
    number: int
    attempt: int


class Voice:
    """A source that numbers what it says."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._numbers = count(1)

    def started(self, rank: int, attempt: int = 1) -> RankStarted:
        return RankStarted(**self._head(attempt), rank=rank, life=1, pid=100 + rank)

    def reported(self, rank: int, index: int, attempt: int = 1) -> Reported:
        metrics: dict[str, Json] | None = {"loss": 1 / (index + 1)} if rank == 0 else None
        return Reported(**self._head(attempt), rank=rank, life=1, index=index, step=index, metrics=metrics)

    def returned(self, rank: int, reports: int, attempt: int = 1) -> RankReturned:
        return RankReturned(**self._head(attempt), rank=rank, life=1, reports=reports)

    def failed(self, rank: int, error: ErrorInfo = BOOM, attempt: int = 1) -> RankFailed:
        return RankFailed(**self._head(attempt), rank=rank, life=1, error=error)

    def exited(self, rank: int, code: int = 0, attempt: int = 1, *, returned: bool = False) -> RankExited:
        return RankExited(**self._head(attempt), rank=rank, life=1, exit_code=code, returned=returned)

    def placed(self, slots: int = 2, attempt: int = 1) -> Placed:
        return Placed(**self._head(attempt), places=(PlaceOffer(node="local", slots=slots),))

    def ready(self, attempt: int = 1) -> RunnerReady:
        return RunnerReady(**self._head(attempt), node="local", addr="127.0.0.1", port=29500)

    def capacity(self, slots: dict[str, int], attempt: int = 1) -> CapacityChanged:
        return CapacityChanged(**self._head(attempt), slots=slots)

    def released(self, attempt: int = 1) -> Released:
        return Released(**self._head(attempt))

    def _head(self, attempt: int) -> _Head:
        return _Head(source=self.source, incarnation=1, number=next(self._numbers), attempt=attempt)


def decided(steps: Iterable[tuple[float, Sequence[AnyInput]]]) -> list[bytes]:
    """The bytes of a run that sees these inputs, as the default policies decide it."""
    written: list[Step] = []
    state: RunState | None = None
    unborn = Unborn(job=JOB, digest=job_digest(JOB), jobs_sequence=7)
    for t, inputs in steps:
        transitions = decide(state or unborn, inputs, t).transitions
        written.append((t, inputs, transitions))
        state = fold(state, _entry(len(written) - 1, written[-1]))
    return chained(written)


def beginning(pool: Voice, node: Voice) -> list[tuple[float, list[AnyInput]]]:
    """Accepted, placed, laid out, running: five entries, the last at 0.9 s."""
    joins = [
        Join(id=f"b-{voice.source}", source=voice.source, boot=f"b-{voice.source}", origin=Origin(inbox=k))
        for k, voice in enumerate((pool, node), start=1)
    ]
    return [
        (
            0.0,
            [
                JobTaken(digest=job_digest(JOB), origin=Origin(jobs=7)),
                ControllerStarted(controller="ctl-a1", decider=DECIDER),
            ],
        ),
        (0.1, [*joins]),
        (0.2, [pool.placed()]),
        (0.3, [node.ready()]),
        (0.9, [node.started(0), node.started(1)]),
    ]


def reports(node: Voice, t: float, indexes: range, attempt: int = 1) -> list[tuple[float, list[AnyInput]]]:
    """One entry a report of both ranks, half a second apart."""
    return [
        (t + 0.5 * k, [node.reported(0, index, attempt), node.reported(1, index, attempt)])
        for k, index in enumerate(indexes)
    ]


def ending(pool: Voice, node: Voice, t: float, attempt: int, count_: int) -> list[tuple[float, list[AnyInput]]]:
    """Both ranks return, the group is released, the run is finished."""
    return [
        (t, [node.returned(0, count_, attempt), node.returned(1, count_, attempt)]),
        (t + 0.1, [node.exited(0, attempt=attempt, returned=True), node.exited(1, attempt=attempt, returned=True)]),
        (t + 0.2, [pool.released(attempt)]),
    ]


def finished_run(count_: int = 6) -> list[bytes]:
    """A run that trains and finishes."""
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node) + reports(node, 1.0, range(count_))
    return decided(steps + ending(pool, node, 2.0 + 0.5 * count_, 1, count_))


def failing_run() -> list[bytes]:
    """A run whose rank 1 raises at 4.5 s (entry 11), is tried again on its places, and finishes."""
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node) + reports(node, 1.0, range(6))
    steps.append((4.5, [node.failed(1), node.exited(1, 1)]))
    steps.append((5.0, [node.started(0, 2), node.started(1, 2)]))
    steps += reports(node, 5.5, range(6), 2)
    return decided(steps + ending(pool, node, 9.0, 2, 6))


def errored_run() -> list[bytes]:
    """A run whose rank 1 raises twice, which is once too often; it ends errored."""
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node)
    steps.append((1.5, [node.failed(1), node.exited(1, 1)]))
    steps.append((2.0, [node.started(0, 2), node.started(1, 2)]))
    steps.append((2.5, [node.failed(1, attempt=2), node.exited(1, 1, 2)]))
    return decided([*steps, (3.0, [pool.released(2)])])
