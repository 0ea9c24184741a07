"""Runs written by hand, through the real encoder and chain: what replay reads in tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypedDict

from runfold.events.base import Cause, Json, Origin
from runfold.events.conclusions import ControllerStarted, Decider, JobTaken
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
from runfold.events.failures import ErrorInfo, Failure
from runfold.events.job import Job, job_digest
from runfold.events.requests import Join
from runfold.events.transitions import (
    AnyTransition,
    AttemptStarted,
    ControllerChanged,
    FailureDecided,
    GroupLaidOut,
    RankLaid,
    RunAccepted,
    SourceJoined,
    StateChanged,
    StateName,
)
from runfold.replay.export import export_lines
from runfold.replay.history import History, Raw, Where, link_up

RUN = "digits-7k2"
START = datetime(2026, 11, 30, 5, 35, tzinfo=UTC)
DECIDER = Decider(version="0.1.0")
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
    for n, (t, inputs, transitions) in enumerate(steps):
        entry = Entry(
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
        written.append(encode_entry(entry))
        prev = hash_entry(written[-1])
    return written


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

    def released(self, attempt: int = 1) -> Released:
        return Released(**self._head(attempt))

    def _head(self, attempt: int) -> _Head:
        return _Head(source=self.source, incarnation=1, number=next(self._numbers), attempt=attempt)


def changed(
    before: StateName, after: StateName, reason: str, cause: Cause, num_workers: int | None = None
) -> StateChanged:
    """A change of state."""
    return StateChanged(from_state=before, to_state=after, reason=reason, cause=cause, num_workers=num_workers)


INPUT = Cause(input=0)


def beginning(pool: Voice, node: Voice) -> list[Step]:
    """Accepted, placed, laid out, running: five entries, the last at 0.9 s."""
    started = ControllerStarted(controller="ctl-a1", decider=DECIDER)
    taken = JobTaken(digest=job_digest(JOB), origin=Origin(jobs=7))
    accepted: list[AnyTransition] = [
        RunAccepted(cause=INPUT, reason="job 7 taken", job=JOB, digest=job_digest(JOB), jobs_sequence=7),
        ControllerChanged(
            cause=Cause(input=1), reason="ctl-a1 owns the run", epoch=1, controller="ctl-a1", decider=DECIDER
        ),
        AttemptStarted(cause=Cause(transition=0), reason="first attempt: 2 ranks", attempt=1, num_workers=2),
        changed("initializing", "scheduling", "2 ranks are wanted", Cause(transition=2), num_workers=2),
    ]
    joins = [
        Join(id=f"b-{voice.source}", source=voice.source, boot="b1", origin=Origin(inbox=k))
        for k, voice in enumerate((pool, node), start=1)
    ]
    joined = [
        SourceJoined(
            cause=Cause(input=k), reason=f"{join.source} has come up", source=join.source, boot="b1", incarnation=1
        )
        for k, join in enumerate(joins)
    ]
    layout = tuple(RankLaid(rank=r, life=1, place=0, local_rank=r, node_rank=0) for r in (0, 1))
    laid = GroupLaidOut(
        cause=INPUT, reason="every runner is ready", attempt=1, layout=layout, addr="127.0.0.1", port=29500
    )
    return [
        (0.0, [taken, started], accepted),
        (0.1, joins, joined),
        (0.2, [pool.placed()], []),
        (0.3, [node.ready()], [laid]),
        (
            0.9,
            [node.started(0), node.started(1)],
            [changed("scheduling", "running", "2 of 2 ranks are in user code", Cause(input=1))],
        ),
    ]


def reports(node: Voice, t: float, indexes: range, attempt: int = 1) -> list[Step]:
    """One entry a report of both ranks, half a second apart."""
    return [
        (t + 0.5 * k, [node.reported(0, index, attempt), node.reported(1, index, attempt)], [])
        for k, index in enumerate(indexes)
    ]


def ending(pool: Voice, node: Voice, t: float, attempt: int, count_: int) -> list[Step]:
    """Both ranks return, the group is released, the run is finished."""
    return [
        (
            t,
            [node.returned(0, count_, attempt), node.returned(1, count_, attempt)],
            [
                StateChanged(
                    from_state="running",
                    to_state="shutting_down",
                    reason="every rank returned",
                    cause=Cause(input=1),
                    next="finished",
                    deadline_t=t + 30.0,
                )
            ],
        ),
        (t + 0.1, [node.exited(0, attempt=attempt, returned=True), node.exited(1, attempt=attempt, returned=True)], []),
        (
            t + 0.2,
            [pool.released(attempt)],
            [changed("shutting_down", "finished", "every rank returned; the group is released", INPUT)],
        ),
    ]


def finished_run(count_: int = 6) -> list[bytes]:
    """A run that trains and finishes."""
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node) + reports(node, 1.0, range(count_))
    return chained(steps + ending(pool, node, 2.0 + 0.5 * count_, 1, count_))


def failing_run() -> list[bytes]:
    """A run whose rank 1 raises at 4.5 s, is tried again on its places, and finishes."""
    pool, node = Voice("pool-local"), Voice("local")
    failure = Failure(kind="user", attempt=1, node="local", error=BOOM, t=4.5, cause=Cause(entry=11, input=0), rank=1)
    decided: list[AnyTransition] = [
        FailureDecided(
            cause=INPUT,
            reason="rank 1 failed first: RuntimeError: boom; worker failure 1 of 1",
            decision="retry",
            failure=failure,
            budget="worker",
            spent=1,
            limit=1,
        ),
        StateChanged(
            from_state="running",
            to_state="restarting",
            reason="attempt 1 failed",
            cause=Cause(transition=0),
            failure=failure,
            not_before_t=4.5,
        ),
        AttemptStarted(
            cause=Cause(transition=1), reason="another try on the same places", attempt=2, num_workers=2, kept=True
        ),
        changed("restarting", "scheduling", "attempt 2 begins", Cause(transition=2), num_workers=2),
    ]
    steps = beginning(pool, node) + reports(node, 1.0, range(6))
    steps.append((4.5, [node.failed(1), node.exited(1, 1)], decided))
    running = changed("scheduling", "running", "2 of 2 ranks are in user code", Cause(input=1))
    steps.append((5.0, [node.started(0, 2), node.started(1, 2)], [running]))
    steps += reports(node, 5.5, range(6), 2)
    return chained(steps + ending(pool, node, 9.0, 2, 6))
