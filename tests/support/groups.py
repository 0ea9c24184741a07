"""A group of two ranks over the broker: a supervisor and a runner that say what a test wants them to."""

from __future__ import annotations

from runfold.events.config import FailureConfig, ScalingConfig, Timeouts
from runfold.events.facts import Placed, RankReturned, RankStarted, Released, RunnerReady
from runfold.events.job import Job
from runfold.events.nats.connection import Connection
from support.controller import Observer, Voice

RUN = "digits-1"
LONG_S = 3600.0
PATIENT = Timeouts(unreachable_after_s=LONG_S, lost_after_s=LONG_S, lost_alone_after_s=LONG_S, start_timeout_s=LONG_S)
"""Nobody of a group that a test speaks for beats: however slow the test is, nothing is concluded from its silence."""


def asked(run: str = RUN) -> Job:
    """A job of two ranks that may fail once."""
    return Job(
        id=run,
        entrypoint="examples.digits:train",
        scaling=ScalingConfig(num_workers=2),
        failure=FailureConfig(max_failures=1),
        timeouts=PATIENT,
    )


class Group:
    """A supervisor and a runner of two ranks, over the broker."""

    def __init__(self, workers: Connection, observer: Observer, run: str = RUN) -> None:
        self.run = run
        self.observer = observer
        self.pool = Voice(workers, observer, run, "pool-local")
        self.runner = Voice(workers, observer, run, "local")

    async def trains(self) -> None:
        """Bring the run to RUNNING."""
        await self.pool.join("p1")
        await self.pool.say(self.pool.next(Placed, places=[{"node": "local", "slots": 2}]))
        await self.runner.join("r1")
        await self.runner.say(self.runner.next(RunnerReady, node="local", addr="127.0.0.1", port=4000))
        await self.starts(1)

    async def starts(self, attempt: int) -> None:
        """Start both ranks of an attempt."""
        await self.observer.assignment(self.run, lambda now: (now.want, now.attempt) == ("train", attempt))
        ranks = [self.runner.next(RankStarted, attempt, rank=r, life=1, pid=9, next_port=4001) for r in (0, 1)]
        await self.runner.say(*ranks, attempt=attempt)
        await self.observer.status(self.run, lambda now: (now.state, now.attempt) == ("running", attempt))

    async def finishes(self, attempt: int = 1) -> None:
        """Return, release, end."""
        ranks = [self.runner.next(RankReturned, attempt, rank=r, life=1, reports=0) for r in (0, 1)]
        await self.runner.say(*ranks, attempt=attempt)
        await self.observer.assignment(self.run, lambda now: now.want == "stop")
        await self.pool.say(self.pool.next(Released, attempt), attempt=attempt)
        await self.observer.assignment(self.run, lambda now: now.want == "gone")
        assert (await self.observer.status(self.run, lambda now: now.terminal)).state == "finished"
