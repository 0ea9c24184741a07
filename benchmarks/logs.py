"""Logs to measure on, written as real runs write them: what sources say, decided by the real decider, linked."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypedDict

from runfold.controller.decide import settle
from runfold.events.base import Json, Origin
from runfold.events.conclusions import ControllerStarted, JobTaken
from runfold.events.config import FailureConfig, ScalingConfig
from runfold.events.entry import GENESIS, AnyInput, Entry, encode_entry, hash_entry
from runfold.events.facts import (
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
from runfold.events.job import Job, job_digest
from runfold.events.requests import Join
from runfold.events.state import AnyState, Unborn
from runfold.replay.verify import present_decider

RUN = "bench"
POOL = "pool-local"
START = datetime(2026, 11, 30, tzinfo=UTC)
CLOCK_S = 1000.0
Step = tuple[float, list[AnyInput]]


class _Head(TypedDict):
    source: str
    incarnation: int
    number: int
    attempt: int
    clock_s: float


def busy(entries: int, reports_each: int) -> list[bytes]:
    """A run of two ranks that trains: so many entries of so many reports, metrics with rank 0's."""
    facts = _Facts()
    steps = list(facts.starts())
    for k in range(entries):
        t = 1.0 + 0.5 * k
        each = range(k * reports_each // 2, (k + 1) * reports_each // 2)
        steps.append((t, [facts.reported(rank, index, t) for index in each for rank in (0, 1)]))
    return written([*steps, *facts.ends(1.0 + 0.5 * entries, entries * reports_each // 2)])


def restless(attempts: int) -> list[bytes]:
    """A run of two ranks that fails again and again: each attempt has two reports a rank, a failure, a restart."""
    facts = _Facts()
    steps = list(facts.starts())
    t = 1.0
    for attempt in range(1, attempts + 1):
        facts.attempt = attempt
        if attempt > 1:
            steps.append((t + 0.1, [facts.exited(rank, attempt - 1, t) for rank in (0, 1)]))
            steps.append((t + 0.2, [facts.started(rank, t) for rank in (0, 1)]))
        steps.append((t + 0.5, [facts.reported(rank, index, t) for index in (0, 1) for rank in (0, 1)]))
        steps.append((t + 0.9, [facts.failed(1, t)]))
        t += 1.0
    return written(steps)


def written(steps: list[Step]) -> list[bytes]:
    """The bytes of a log whose entries see these inputs."""
    job = Job(
        id=RUN,
        name="bench",
        entrypoint="bench.py:train",
        scaling=ScalingConfig(num_workers=2),
        failure=FailureConfig(max_failures=-1),
    )
    state: AnyState = Unborn(job=job, digest=job_digest(job), jobs_sequence=1)
    taken: list[AnyInput] = [
        JobTaken(digest=job_digest(job), origin=Origin(jobs=1)),
        ControllerStarted(controller="ctl", decider=present_decider()),
    ]
    lines: list[bytes] = []
    prev = GENESIS
    for n, (t, inputs) in enumerate([(0.0, taken), *steps]):
        transitions, state = settle(state, inputs, t, cursor=("inbox", n))
        at = (START + timedelta(seconds=t)).isoformat(timespec="microseconds").replace("+00:00", "Z")
        entry = Entry(
            v=1, run=RUN, n=n, t=t, at=at, by="ctl", epoch=1, cursor=("inbox", n), inputs=tuple(inputs),
            transitions=transitions, prev=prev,
        )  # fmt: skip
        lines.append(encode_entry(entry))
        prev = hash_entry(lines[-1])
    return lines


class _Facts:
    """What the pool and the runner say, numbered."""

    def __init__(self) -> None:
        self.numbers = {POOL: count(1), "local": count(1)}
        self.attempt = 1

    def starts(self) -> Iterator[Step]:
        """Everything up to both ranks in user code."""
        yield 0.1, [Join(id=name, source=name, boot=name) for name in (POOL, "local")]
        yield 0.2, [Placed(**self._by(POOL, 0.2), places=(PlaceOffer(node="local", slots=2),))]
        yield 0.3, [RunnerReady(**self._by("local", 0.3), node="local", addr="127.0.0.1", port=29500)]
        yield 0.9, [self.started(rank, 0.9) for rank in (0, 1)]

    def ends(self, t: float, reports: int) -> Iterator[Step]:
        """Both ranks return, the group is released: the run is finished."""
        by = [self._by("local", t) for _ in (0, 1)]
        yield t, [RankReturned(**head, rank=rank, life=1, reports=reports) for rank, head in enumerate(by)]
        yield t + 0.1, [Released(**self._by(POOL, t))]

    def _by(self, source: str, t: float, attempt: int | None = None) -> _Head:
        number = next(self.numbers[source])
        return _Head(
            source=source, incarnation=1, number=number, attempt=attempt or self.attempt, clock_s=round(CLOCK_S + t, 6)
        )

    def started(self, rank: int, t: float) -> RankStarted:
        return RankStarted(**self._by("local", t), rank=rank, life=1, pid=100 + rank, next_port=29501)

    def reported(self, rank: int, index: int, t: float) -> Reported:
        metrics: dict[str, Json] | None = {"loss": 1.0 / (index + 1), "accuracy": 0.5} if rank == 0 else None
        return Reported(**self._by("local", t), rank=rank, life=1, index=index, step=index, metrics=metrics)

    def failed(self, rank: int, t: float) -> RankFailed:
        frames = "".join(f'  File "bench.py", line {k}, in step\n' for k in range(4))
        error = ErrorInfo(
            type="RuntimeError", message="boom", kind="user", where="bench.py:7 in step",
            traceback=f"Traceback (most recent call last):\n{frames}RuntimeError: boom\n",
        )  # fmt: skip
        return RankFailed(**self._by("local", t), rank=rank, life=1, error=error)

    def exited(self, rank: int, attempt: int, t: float) -> RankExited:
        return RankExited(**self._by("local", t, attempt), rank=rank, life=1, exit_code=1, asked=True)
