"""Tasks at a runner: what its assignment says is to be done beside the ranks, done and told, each once.

A kind of task has a `Doer`; tasks of the storage are done one after another, in the order of the assignment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Final, Protocol

from runfold.events.assignment import Assignment, Work
from runfold.events.base import Json
from runfold.events.facts import AnyFact, CheckpointSealed, TaskEnded
from runfold.events.failures import ErrorInfo
from runfold.events.nats.errors import BrokerError
from runfold.events.tasks import DELETE, DOUBT, OPEN, SEAL, Task
from runfold.workers.hand import Hand
from runfold.workers.keeper import Answer, Ask
from runfold.workers.layout import StorageSpec
from runfold.workers.spool import FactTooLargeError, about

STORAGE_KINDS: Final = (OPEN, SEAL, DELETE, DOUBT)
ON_LEAVING_MAX_S: Final = 6.0
"""How long a runner that should leave works on at its tasks: less than the margin after which it would be killed."""
COLLECT: Final = "collect:"
"""How the id begins of what a runner does by itself: removing what its own ranks left half uploaded."""
_LOG: Final = logging.getLogger("runfold.workers")


class Doer(Protocol):
    """Does the tasks of a kind. What it raises is a bug of ours."""

    async def do(self, task: Task, work: Work) -> AnyFact:
        """Do a task and return the fact that tells its end; source and number are the spool's to fill in."""
        ...


class StorageDoer:
    """Does tasks of the storage, by the keeper."""

    def __init__(self, run: str, hand: Hand, spec_of: Callable[[Work], Awaitable[StorageSpec]]) -> None:
        self._run = run
        self._hand = hand
        self._spec_of = spec_of
        self.attempt = 0

    async def do(self, task: Task, work: Work) -> AnyFact:
        """Do a task and return the fact that tells its end."""
        answer = await self.answer(task, work)
        sealed = answer.sealed
        if sealed is None or answer.error is not None:
            return ended(task, self.attempt, value=answer.value, error=answer.error)
        name, index = task.arguments.get("name"), task.arguments.get("index")
        return CheckpointSealed(
            **about(self.attempt, time.monotonic()),
            name=str(name),
            index=index if isinstance(index, int) else 0,
            manifest_digest=sealed.manifest_digest,
            size_bytes=sealed.size_bytes,
            metrics=sealed.metrics,
        )

    async def answer(self, task: Task, work: Work) -> Answer:
        """Have the keeper do a task."""
        try:
            spec = await self._spec_of(work)
        except BrokerError as error:
            return Answer(error=ErrorInfo(type=type(error).__name__, message=str(error), kind="storage"))
        ask = Ask(
            task=task,
            run=self._run,
            spec=spec,
            env=work.env,
            retries_max=work.checkpointing.upload_retries_max,
        )
        return await self._hand.ask(ask, work.timeouts.checkpoint_timeout_s)


def ended(task: Task, attempt: int, *, value: Json = None, error: ErrorInfo | None = None) -> TaskEnded:
    """Return the fact that a task is over."""
    return TaskEnded(
        **about(attempt, time.monotonic()),
        task=task.id,
        outcome="done" if error is None else "failed",
        value=value,
        error=error,
    )


class Chores:
    """The tasks of one runner. `hear` assignments, `collect` what ranks left, `look` when ranks have ended."""

    def __init__(
        self,
        source: str,
        storage: StorageDoer,
        say: Callable[[AnyFact], None],
        attempts: Callable[[], set[int]],
        on_change: Callable[[], None],
    ) -> None:
        self._source = source
        self._storage = storage
        self._say = say
        self._attempts = attempts
        self._on_change = on_change
        self._doers: dict[str, Doer] = dict.fromkeys(STORAGE_KINDS, storage)
        self._known: set[str] = set()
        self._waiting: list[Task] = []
        self._work: Work | None = None
        self._present = 0
        self._stopping = False
        self._closed = False
        self._doing: asyncio.Task[None] | None = None
        self._doing_id = ""
        self._beside: set[asyncio.Task[None]] = set()
        self.crashed: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being done, or could be now."""
        return self._doing is not None or bool(self._beside) or self._runnable() is not None

    def register(self, kind: str, doer: Doer) -> None:
        """Have tasks of a kind done by `doer`, beside those of the storage."""
        self._doers[kind] = doer

    def hear(self, assignment: Assignment) -> None:
        """Take what an assignment says is to be done here."""
        self._work = assignment.job or self._work
        self._present = assignment.attempt
        self._stopping = assignment.want in ("stop", "gone")
        self._storage.attempt = assignment.attempt
        mine = [task for task in assignment.tasks if task.source == self._source]
        self._forget(assignment.tasks, {task.id for task in mine})
        for task in mine:
            if task.id not in self._known:
                self._known.add(task.id)
                self._take(task)
        self.look()

    def _forget(self, tasks: Iterable[Task], mine: set[str]) -> None:
        """Leave what is to be done no more, or by another one: each is done once.

        What was begun here, and is nobody's for the moment, is gone on with: it is not begun again when it is ours.
        """
        theirs = {task.id for task in tasks if task.source not in ("", self._source)}
        begun = {task.id for task in tasks} - theirs - {task.id for task in self._waiting}
        self._waiting = [task for task in self._waiting if task.id in mine or task.id.startswith(COLLECT)]
        self._known = {one for one in self._known if one in mine | begun or one.startswith(COLLECT)}
        if self._doing is not None and self._doing_id in theirs:
            self._doing.cancel()

    def collect(self, attempt: int, names: set[str]) -> None:
        """Remember what a rank that has ended left half uploaded: it goes when its attempt is over."""
        for name in sorted(names):
            arguments: dict[str, Json] = {"names": [name], "sealed": False, "attempt": attempt}
            self._waiting.append(Task(id=f"{COLLECT}{attempt}:{name}", kind=DELETE, arguments=arguments))
        self.look()

    def look(self) -> None:
        """Do what can be done by now."""
        if self._doing is None and (task := self._runnable()) is not None and self._work is not None:
            self._waiting.remove(task)
            self._doing_id = task.id
            self._doing = self._begin(self._do(task, self._storage, self._work), f"task {task.id}", self._done)

    async def close(self) -> None:
        """Leave everything as it is."""
        self._closed = True
        tasks = [*self._beside, *([self._doing] if self._doing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, task: Task) -> None:
        doer = self._doers.get(task.kind)
        if doer is self._storage:
            self._waiting.append(task)
        elif doer is not None and self._work is not None:
            doing = self._begin(self._do(task, doer, self._work), f"task {task.id}", self._beside_done)
            self._beside.add(doing)
        else:
            why = f"this version of runfold does no task of kind {task.kind!r}"
            self._say(ended(task, self._present, error=ErrorInfo(type="NotAvailable", message=why, kind="controller")))

    def _runnable(self) -> Task | None:
        """Return the first task that may be done now: what is left of an attempt goes once nobody writes to it."""
        if self._work is None:
            return None
        living = self._attempts()
        for task in self._waiting:
            attempt = task.arguments.get("attempt")
            if task.kind != DELETE or task.arguments.get("sealed") is True or not isinstance(attempt, int):
                return task
            over = self._stopping or self._present > attempt or not task.id.startswith(COLLECT)
            if over and all(one > attempt for one in living):
                return task
        return None

    async def _do(self, task: Task, doer: Doer, work: Work) -> None:
        fact = await doer.do(task, work)
        if task.id.startswith(COLLECT):
            _LOG.info("%s: what a rank left half uploaded: %s", task.id, fact)
        else:
            self._tell(task, fact)

    def _tell(self, task: Task, fact: AnyFact) -> None:
        try:
            self._say(fact)
        except FactTooLargeError as error:
            told = ErrorInfo(type="FactTooLargeError", message=str(error), kind="storage")
            self._say(ended(task, self._present, error=told))

    def _begin(
        self, work: Coroutine[object, object, None], name: str, done: Callable[[asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._doing = None
        self._settle(task)
        if self.crashed is None and not self._closed:
            self.look()

    def _beside_done(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        self._settle(task)

    def _settle(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.crashed = task.exception()
        self._on_change()
