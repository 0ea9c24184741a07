"""What a supervisor does beside a run's group: validations, each in a process with resources of its own; questions to
the run's hook process; and what is to be done in the storage when no runner is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from runfold.events.assignment import Assignment, Work
from runfold.events.base import Json
from runfold.events.config import ValidationSpec
from runfold.events.facts import AnyFact
from runfold.events.nats.blobs import Blobs
from runfold.events.nats.errors import BrokerError
from runfold.events.tasks import HOOK, VALIDATION, Task
from runfold.workers.aside import Aside
from runfold.workers.callbacks import RunContext
from runfold.workers.chores import STORAGE_KINDS, StorageDoer, ended
from runfold.workers.errors import RunfoldError
from runfold.workers.hand import Hand
from runfold.workers.logs import log_bug
from runfold.workers.nursery import Nursery
from runfold.workers.outside import HOOKS, VALIDATE, Order, Question, Said, unanswered
from runfold.workers.placing import SEPARATOR
from runfold.workers.pools.local import Demand
from runfold.workers.prepare import code_of
from runfold.workers.remote import AGAIN_AFTER_S, REMOTE_TRIES_MAX, RemoteTask, RemoteTaskLost, RemoteTasks
from runfold.workers.spool import FactTooLargeError
from runfold.workers.storages import Home, Storages

_LOG: Final = logging.getLogger("runfold.workers")


class Beside:
    """The tasks of one run at its supervisor. `hear` assignments, `granted` slots, `close`.

    `ask` puts a demand for slots, and returns why it can never be met if so; `give_back` ends one. With `remote` what
    has slots is done where they are, and with `adopt` goes on there without a supervisor.
    """

    def __init__(
        self,
        home: Home,
        source: str,
        nursery: Nursery,
        blobs: Blobs,
        say: Callable[[AnyFact], None],
        ask: Callable[[Demand], str | None],
        give_back: Callable[[str], None],
        remote: RemoteTasks | None = None,
        *,
        adopt: bool = False,
    ) -> None:
        self._home = home
        self._source = source
        self._nursery = nursery
        self._blobs = blobs
        self._say = say
        self._ask = ask
        self._give_back = give_back
        self._remote = remote
        self._adopt = adopt
        self._storages = Storages(home, blobs)
        self._doing: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._slots: dict[str, asyncio.Event] = {}
        self._hooks: Aside | None = None
        self._hooks_turn = asyncio.Lock()
        self._hand: Hand | None = None
        self._storage_turn = asyncio.Lock()
        self._attempt = 0

    def hear(self, assignment: Assignment) -> None:
        """Begin what is new among the tasks, and leave what is wanted no more."""
        self._attempt = assignment.attempt
        wanted = {task.id: task for task in assignment.tasks if task.source == self._source}
        for name in [name for name in self._doing if name not in wanted]:
            self._leave(self._doing.pop(name))
        for name, task in wanted.items():
            if name not in self._doing and assignment.job is not None:
                doing = asyncio.create_task(self._do(task, assignment, assignment.job), name=name)
                doing.add_done_callback(partial(self._note_end, task))
                self._doing[name] = doing

    def _note_end(self, task: Task, doing: asyncio.Task[None]) -> None:
        """Tell a task that met a bug of ours as failed: the run must not wait for it until its time is over."""
        log_bug(doing, f"{self._home.run}: task {task.id}")
        if not doing.cancelled() and (error := doing.exception()) is not None:
            self._say(self._ended(task, unanswered(type(error).__name__, str(error))))

    def _leave(self, doing: asyncio.Task[None]) -> None:
        """Do a task no more; its process ends."""
        doing.cancel()
        self._leaving.add(doing)
        doing.add_done_callback(self._leaving.discard)

    def granted(self, task: str) -> None:
        """A task has its slots."""
        if (granted := self._slots.get(task)) is not None:
            granted.set()

    async def close(self) -> None:
        """Leave everything; processes end."""
        for task in self._doing.values():
            self._leave(task)
        self._doing.clear()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        if self._hooks is not None:
            await self._hooks.end()
            self._hooks = None
        if self._hand is not None:
            await self._hand.close()

    # --- doing

    async def _do(self, task: Task, assignment: Assignment, work: Work) -> None:
        """Do a task and tell its end. What its user code does is told, and touches nothing else."""
        try:
            fact = await self._done(task, assignment, work)
        except (BrokerError, RunfoldError, OSError, ValueError) as error:
            fact = self._ended(task, unanswered(type(error).__name__, str(error)))
        try:
            self._say(fact)
        except FactTooLargeError as error:
            self._say(self._ended(task, unanswered("ValueError", f"what it returned is too large: {error}")))

    async def _done(self, task: Task, assignment: Assignment, work: Work) -> AnyFact:
        if task.kind == VALIDATION and work.validation is not None:
            return self._ended(task, await self._validated(task, assignment, work))
        if task.kind == HOOK:
            return self._ended(task, await self._asked(task, assignment, work))
        if task.kind in STORAGE_KINDS:
            return await self._stored(task, work)
        return self._ended(task, unanswered("NotAvailable", f"no supervisor does a task of kind {task.kind!r}"))

    def _ended(self, task: Task, said: Said) -> AnyFact:
        return ended(task, self._attempt, value=said.value, error=said.error)

    async def _validated(self, task: Task, assignment: Assignment, work: Work) -> Said:
        spec = work.validation
        if spec is None:
            return unanswered("ValueError", "the job says nothing of validations")
        demand = Demand(
            run=f"{assignment.run}{SEPARATOR}{task.id}",
            attempt=assignment.attempt,
            num_workers=1,
            resources={name: amount for name, amount in spec.resources.items() if amount > 0},
            priority=assignment.priority,
            accepted_at=assignment.accepted_at,
        )
        lost = ""
        for tries_left in reversed(range(REMOTE_TRIES_MAX)):
            try:
                return await self._tried(task, demand, assignment, work, spec)
            except RemoteTaskLost as error:
                lost = str(error)
            if tries_left:
                _LOG.warning("%s: %s is lost, and is begun again: %s", self._home.run, task.id, lost)
                await asyncio.sleep(AGAIN_AFTER_S)
        return unanswered("RemoteTaskLost", f"it was lost {REMOTE_TRIES_MAX} times: {lost}")

    async def _tried(
        self, task: Task, demand: Demand, assignment: Assignment, work: Work, spec: ValidationSpec
    ) -> Said:
        """Validate with what that needs: where it is, if that is on other machines."""
        granted = self._slots[task.id] = asyncio.Event()
        remote = self._remote if demand.resources else None
        try:
            if demand.resources and not (remote is not None and remote.holds(demand.run)):
                if (never := self._ask(demand)) is not None:
                    return unanswered("PlacementImpossible", never)
                await granted.wait()
            order = await self._order(work, assignment, (spec.entrypoint,), storage=True)
            question = Question(hook=str(task.arguments.get("name")), arguments=_dict(task.arguments))
            if remote is None:
                return await self._once(VALIDATE, order, question)
            return await remote.do(self._sent(demand, order, question, assignment, work))
        finally:
            del self._slots[task.id]
            self._give_back(demand.run)

    def _sent(self, demand: Demand, order: Order, question: Question, assignment: Assignment, work: Work) -> RemoteTask:
        return RemoteTask(
            key=demand.run,
            attempt=demand.attempt,
            order=order,
            question=question,
            working_dir=work.working_dir,
            secret_env=work.secret_env,
            runtime_env=assignment.runtime_env,
            adopt_within_s=work.timeouts.adopt_within_s if self._adopt else 0.0,
        )

    async def _once(self, spec: bytes, order: Order, question: Question) -> Said:
        process = await Aside.start(self._nursery, spec, order)
        try:
            return await process.ask(question)
        finally:
            await process.end()

    async def _asked(self, task: Task, assignment: Assignment, work: Work) -> Said:
        """Ask the hook process, one question at a time; one that is wanted no more costs it its life."""
        async with self._hooks_turn:
            if self._hooks is None or not self._hooks.alive:
                order = await self._order(work, assignment, work.hooks.callbacks, storage=False)
                self._hooks = await Aside.start(self._nursery, HOOKS, order)
            hooks = self._hooks
            question = Question(hook=str(task.arguments.get("hook")), arguments=_dict(task.arguments))
            try:
                return await hooks.ask(question)
            except asyncio.CancelledError:
                _LOG.warning(
                    "%s: the gate %s has not answered in time; its process ends", self._home.run, question.hook
                )
                self._hooks = None
                await hooks.end()
                raise

    async def _stored(self, task: Task, work: Work) -> AnyFact:
        async with self._storage_turn:
            if self._hand is None:
                self._hand = Hand(await self._nursery.warm())
            doer = StorageDoer(self._home.run, self._hand, self._storages.of)
            doer.attempt = self._attempt
            return await doer.do(task, work)

    async def _order(self, work: Work, assignment: Assignment, entrypoints: tuple[str, ...], *, storage: bool) -> Order:
        return Order(
            codes=tuple([await code_of(entrypoint, self._blobs) for entrypoint in entrypoints]),
            context=RunContext(
                run_id=assignment.run,
                name=work.name,
                storage_path=work.storage_path,
                train_loop_config=work.config,
                num_workers=assignment.num_workers,
            ),
            env={**work.env, "RUNFOLD_RUN": assignment.run},
            working_dir=str(Path(self._home.base_dir) / (work.working_dir or ".")),
            storage=await self._storages.of(work) if storage else None,
            retries_max=work.checkpointing.upload_retries_max,
        )


def _dict(arguments: dict[str, Json]) -> dict[str, Json]:
    found = arguments.get("arguments")
    return found if isinstance(found, dict) else {}
