"""The log of a run in this process: what its one rank says is decided on by the same functions as ever, and kept.

There is no broker and no controller beside it: an entry is made as soon as something is said that can change a
decision, and what the run's assignment asks for (sealing, deleting, validating) is done on the spot.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.controller.assignment import assignment, work
from runfold.controller.compose import draft
from runfold.controller.main import decider, time_of_day
from runfold.events.conclusions import ControllerStarted, JobTaken
from runfold.events.entry import Head, hash_entry
from runfold.events.facts import (
    CheckpointSealed,
    Placed,
    PlaceOffer,
    RankExited,
    RankFailed,
    RankReturned,
    RankStarted,
    Released,
    Reported,
    RunnerReady,
    TaskEnded,
)
from runfold.events.failures import ErrorInfo
from runfold.events.fold import fold
from runfold.events.job import job_digest
from runfold.events.requests import AbortRun, Join
from runfold.events.state import RunState, Unborn
from runfold.events.tasks import VALIDATION, TaskOutcome
from runfold.follow import Told
from runfold.replay.history import History, Raw, Where, link_up
from runfold.workers.callbacks import RunContext
from runfold.workers.capture import Capture
from runfold.workers.failure import describe
from runfold.workers.keeper import Answer, Ask, done
from runfold.workers.link import Go
from runfold.workers.load import Code
from runfold.workers.outside import Order, Question, validated
from runfold.workers.retry import Retries, retried
from runfold.workers.spool import About
from runfold.workers.storage import as_storage_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.assignment import Work
    from runfold.events.base import Json
    from runfold.events.entry import AnyInput
    from runfold.events.facts import AnyFact
    from runfold.events.job import Job
    from runfold.events.tasks import Task
    from runfold.follow import Onlooker
    from runfold.workers.layout import StorageSpec

NODE: Final = "here"
CONTROLLER: Final = "here"
ADDR: Final = "127.0.0.1"
FLUSH_S: Final = 0.5
"""So long reports that decide nothing wait for others before they make an entry."""


class AboutRank(About):
    """What every fact about a rank says."""

    rank: int
    life: int


class LocalRun:
    """One run, from its acceptance to its end. Every method may be called from any thread of the rank."""

    def __init__(self, job: Job, storage: StorageSpec, onlooker: Onlooker, blobs: Mapping[str, bytes]) -> None:
        self.lock = threading.RLock()
        self.blobs: dict[str, bytes] = dict(blobs)
        self._onlooker = onlooker
        self._storage = storage
        self._began_s = time.monotonic()
        self._raws: list[Raw] = []
        self._head: Head | None = None
        self._state: RunState | Unborn = Unborn(job=job, digest=job_digest(job), jobs_sequence=0)
        self._numbers: dict[str, int] = {}
        self._pool = f"pool-{job.pool}"
        self._waiting: list[AnyFact] = []
        self._flushed_s = self._began_s
        self._done: set[str] = set()
        self._saves: set[int] = set()
        taken = JobTaken(digest=job_digest(job))
        self._write((taken, ControllerStarted(controller=CONTROLLER, decider=decider())))
        self._write(tuple(Join(id=f"{source}-1", source=source, boot=f"{source}-1") for source in (self._pool, NODE)))
        self._say(Placed(**self._by(self._pool), places=(PlaceOffer(node=NODE, slots=1),)))
        self._say(RunnerReady(**self._by(NODE), node=NODE, addr=ADDR, port=0))

    @property
    def state(self) -> RunState:
        """The state after the newest entry."""
        if isinstance(self._state, Unborn):
            raise TypeError("the run has no entry yet")
        return self._state

    @property
    def head(self) -> Head:
        """The newest entry's place in the chain."""
        if self._head is None:
            raise TypeError("the run has no entry yet")
        return self._head

    @property
    def history(self) -> History:
        """The log as it is."""
        linked = link_up(self._raws)
        return History(target=self.state.run, kind="file", run=self.state.run, links=linked.links)

    def unstarted(self) -> str | None:
        """Return why the run is over before its function was called, as where its storage cannot be had; end it."""
        failure = self.state.failure
        if failure is None:
            return None
        if not self.state.terminal:
            self._say(Released(**self._by(self._pool)))
        return failure.error.message

    # --- what the rank says

    def started(self, digest: str | None, versions: dict[str, str]) -> Go:
        """Hear that the training function is loaded; return where it begins."""
        self._say(RankStarted(**self.about_rank(), pid=os.getpid(), digest=digest, versions=versions))
        given = work(self.state)
        return Go(checkpoint=given.checkpoint, first_index=given.first_index)

    def uploading(self, index: int) -> None:
        """Hear that files are about to be uploaded with this report."""
        self._saves.add(index)

    def reported(self, fact: Reported) -> None:
        """Hear a report."""
        with self.lock:
            fact = msgspec.structs.replace(fact, passing=fact.index in self._saves)
            self._waiting.append(fact)
            if fact.decisive or time.monotonic() >= self._flushed_s + FLUSH_S:
                self.flush()

    def returned(self, reports: int, value: Json, blob: bytes | None, digest: str | None) -> None:
        """Hear that the function has returned."""
        if blob is not None and digest is not None:
            self.blobs[digest.rpartition(":")[2]] = blob
        self._say(RankReturned(**self.about_rank(), reports=reports, value=value, blob=digest))
        self._end(RankExited(**self.about_rank(), exit_code=0, returned=True))

    def failed(self, error: BaseException, *, loading: bool = False) -> None:
        """Hear that it has raised, or could not be loaded."""
        info, full = ErrorInfo(type=type(error).__name__, message="it cannot be described", kind="user"), None
        with Capture():
            info, full = describe(error, loading=loading)
        if loading:
            info = msgspec.structs.replace(info, kind="load")
        if full is not None:
            digest = self._keep(full)
            info = msgspec.structs.replace(info, blob=digest)
        self._say(RankFailed(**self.about_rank(), error=info))
        self._end(RankExited(**self.about_rank(), exit_code=1))

    def interrupted(self, reason: str) -> None:
        """Hear that the user wants it to end."""
        self.flush()
        self._write((AbortRun(id="interrupt", by="this process", reason=reason),))
        self._end(RankExited(**self.about_rank(), exit_code=1, asked=True))

    def flush(self) -> None:
        """Write the reports that wait."""
        with self.lock:
            self._flushed_s = time.monotonic()
            if self._waiting:
                self._say()

    # --- entries

    def _end(self, exited: RankExited) -> None:
        self._say(exited)
        if not self.state.terminal:
            self._say(Released(**self._by(self._pool)))

    def _say(self, *facts: AnyFact) -> None:
        """Write an entry on what waits and these facts, then do what is to be done by now."""
        with self.lock:
            said, self._waiting = [*self._waiting, *facts], []
            self._write(tuple(self._numbered(fact) for fact in said))
            while (task := self._next_task()) is not None:
                self._done.add(task.id)
                self._write((self._numbered(self._ended(task, work(self.state))),))

    def _numbered(self, fact: AnyFact) -> AnyFact:
        number = self._numbers[fact.source] = self._numbers.get(fact.source, 0) + 1
        return msgspec.structs.replace(fact, incarnation=self.state.sources[fact.source].incarnation, number=number)

    def _write(self, inputs: tuple[AnyInput, ...]) -> None:
        before = self._state
        t = round(time.monotonic() - self._began_s, 6)
        t = t if isinstance(before, RunState) else 0.0
        made = draft(before, self._head, inputs, t=t, at=time_of_day(), by=CONTROLLER, cursor=None)
        # Read back as it is kept, so that what is folded is what anybody else would fold.
        self._state = fold(before if isinstance(before, RunState) else None, made.entry)
        where = Where(file="memory", start=len(self._raws), end=len(self._raws) + 1)
        self._raws.append(Raw(data=made.data, where=where))
        self._head = Head(n=made.entry.n, hash=hash_entry(made.data))
        self._onlooker.entry(Told(made.entry, self._state, self._head))

    def _by(self, source: str) -> About:
        attempt = self.state.attempt
        return About(source=source, incarnation=1, number=0, attempt=attempt, clock_s=time.monotonic())

    def about_rank(self, clock_s: float | None = None) -> AboutRank:
        """Return what every fact about the rank says."""
        about = self._by(NODE)
        if clock_s is not None:
            about["clock_s"] = clock_s
        return AboutRank(**about, rank=0, life=1)

    # --- tasks

    def _next_task(self) -> Task | None:
        if self.state.terminal:
            return None
        tasks = assignment(self.state, self.head).tasks
        return next((task for task in tasks if task.id not in self._done), None)

    def _ended(self, task: Task, given: Work) -> AnyFact:
        answer: Answer | None = None
        with Capture() as trying:
            answer = self._validated(task, given) if task.kind == VALIDATION else self._stored(task, given)
        if answer is None:
            error = trying.error
            if error is not None and task.kind != VALIDATION:
                error = as_storage_error(error, self._storage)
            info = ErrorInfo(type=type(error).__name__, message=str(error), kind="storage")
            answer = Answer(error=info)
        source = self._pool if task.kind == VALIDATION else NODE
        if answer.sealed is not None:
            name, index = task.arguments.get("name"), task.arguments.get("index")
            return CheckpointSealed(
                **self._by(source),
                name=str(name),
                index=index if isinstance(index, int) else 0,
                manifest_digest=answer.sealed.manifest_digest,
                size_bytes=answer.sealed.size_bytes,
                metrics=answer.sealed.metrics,
            )
        outcome: TaskOutcome = "done" if answer.error is None else "failed"
        return TaskEnded(**self._by(source), task=task.id, outcome=outcome, value=answer.value, error=answer.error)

    def _stored(self, task: Task, given: Work) -> Answer:
        ask = Ask(task=task, run=self.state.run, spec=self._storage)
        return retried(
            lambda: done(ask), Retries(retries_max=given.checkpointing.upload_retries_max), f"task {task.id}"
        )

    def _validated(self, task: Task, given: Work) -> Answer:
        spec = given.validation
        if spec is None:
            raise ValueError("the job says nothing of validations")
        code = Code(spec.entrypoint, self.blobs.get(spec.entrypoint.rpartition(":")[2]))
        order = Order(codes=(code,), context=RunContext(run_id=self.state.run), storage=self._storage)
        arguments = task.arguments.get("arguments")
        question = Question(
            hook=str(task.arguments.get("name")), arguments=arguments if isinstance(arguments, dict) else {}
        )
        return Answer(value=validated(order, question))

    def _keep(self, blob: bytes) -> str:
        from runfold.events.nats.blobs import blob_digest

        digest = blob_digest(blob)
        self.blobs[digest.rpartition(":")[2]] = blob
        return digest
