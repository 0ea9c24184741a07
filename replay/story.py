"""The story in a few lines: what came of the run, what failed first, what was decided, what is left of each budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from runfold.controller.budgets import SETTINGS
from runfold.events.base import Document
from runfold.events.config import FailureConfig
from runfold.events.entry import Entry, Head
from runfold.events.facts import Reported
from runfold.events.failures import Budget, Failure
from runfold.events.transitions import (
    AttemptStarted,
    CheckpointCommitted,
    FailureDecided,
    FirstCauseRevised,
    RunAccepted,
    StateChanged,
    StateName,
)
from runfold.replay.errors import CannotRead
from runfold.replay.goodput import Goodput, goodput_between
from runfold.replay.history import History, end_name, tells
from runfold.replay.incidents import Incident, Seen
from runfold.replay.rows import RowError, row_error
from runfold.replay.spans import Cut


class BudgetLeft(Document, frozen=True, kw_only=True):
    """A budget at the end: `left` is None when it is unlimited."""

    name: Budget
    spent: int
    limit: int
    left: int | None


class Setback(Document, frozen=True, kw_only=True):
    """A failure that was decided on: entry, moment, first cause, what was decided and why, and what it spent.

    `budget` is None for one that is never retried; `left` of it after the decision, None when it is unlimited.
    `others` failed beside it. `revised`: late evidence made another failure the first.
    """

    n: int
    t: float
    attempt: int
    cause: RowError
    decision: Literal["retry", "replace", "raise", "noop"]
    reason: str
    budget: Budget | None = None
    spent: int = 0
    limit: int = 0
    left: int | None = None
    others: int = 0
    revised: bool = False


class Story(Document, frozen=True, kw_only=True):
    """A run at a glance. `duration_s` is the run's clock at the last entry, also while it goes on (`ended` false).

    `incidents` are the first of them, behind which there are `more_incidents`.
    """

    run: str
    name: str
    entrypoint: str
    state: StateName
    ended: bool
    reason: str
    duration_s: float
    accepted_at: str
    attempts: int
    num_workers: int
    reports: int
    checkpoints: int
    checkpoint: str | None
    goodput: Goodput
    setbacks: tuple[Setback, ...]
    incidents: tuple[Incident, ...]
    budgets: tuple[BudgetLeft, ...]
    warnings: tuple[str, ...]
    entries: int
    skipped: int
    trouble: str
    more_incidents: int = 0

    @property
    def first_cause(self) -> Setback | None:
        """The failure that counts: of the last attempt that failed."""
        return self.setbacks[-1] if self.setbacks else None


class _Told:
    """What was read so far."""

    def __init__(self) -> None:
        self.name = self.entrypoint = self.reason = ""
        self.state: StateName = "initializing"
        self.failure = FailureConfig()
        self.attempts = self.num_workers = self.reports = self.checkpoints = 0
        self.checkpoint: str | None = None
        self.setbacks: list[Setback] = []
        self.spent: dict[Budget, int] = {}
        self.warnings: tuple[str, ...] = ()


class Teller:
    """A story told entry by entry, none of which is kept but those that hold more than reports.

    Of a report that tells what its time went into, that part is kept until the attempt is cut into stretches.
    """

    def __init__(self) -> None:
        self.first: Entry | None = None
        self.last: Entry | None = None
        self.telling: list[Entry] = []
        self._inputs = 0
        self._cut = Cut()
        self._seen = Seen()

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        self.first, self.last = self.first or entry, entry
        self._inputs += len(entry.inputs)
        if tells(entry):
            self.telling.append(entry)
        self._cut.take(entry)
        self._seen.take(entry)

    def story(self, head: Head, *, skipped: int = 0, trouble: str = "") -> Story:
        """Return the story up to the newest entry, which was taken last; nothing is taken after that."""
        first, last = self.first, self.last
        if first is None or last is None:
            raise CannotRead("no entry of a run could be read")
        told = _told(self.telling)
        told.reports += self._inputs
        incidents, more = self._seen.finish()
        return Story(
            run=first.run,
            name=told.name,
            entrypoint=told.entrypoint,
            state=told.state,
            ended=end_name(told.state) is not None,
            reason=told.reason,
            duration_s=last.t,
            accepted_at=first.at,
            attempts=told.attempts,
            num_workers=told.num_workers,
            reports=told.reports,
            checkpoints=told.checkpoints,
            checkpoint=told.checkpoint,
            goodput=goodput_between(first.run, self._cut.finish(), self.telling, 0.0, max(0.0, last.t)),
            setbacks=tuple(told.setbacks),
            incidents=incidents,
            more_incidents=more,
            budgets=_budgets(told),
            warnings=told.warnings,
            entries=head.n + 1,
            skipped=skipped,
            trouble=trouble,
        )


def story(history: History) -> Story:
    """Return the story of a history; raise `CannotRead` when it holds no entry."""
    head, teller = history.head, Teller()
    for entry in history.entries:
        teller.take(entry)
    return teller.story(head, skipped=len(history.strays), trouble=history.trouble)


def _told(telling: Iterable[Entry]) -> _Told:
    told = _Told()
    for entry in telling:
        told.reports -= sum([type(item) is not Reported for item in entry.inputs])
        for transition in entry.transitions:
            match transition:
                case RunAccepted(job=job, warnings=warnings):
                    told.name, told.entrypoint, told.failure = job.name or "", job.entrypoint, job.failure
                    told.warnings = warnings
                case StateChanged(to_state=state, reason=reason):
                    told.state, told.reason = state, reason
                case AttemptStarted(attempt=attempt, num_workers=workers):
                    told.attempts, told.num_workers = attempt, workers
                case CheckpointCommitted(name=name):
                    told.checkpoint, told.checkpoints = name, told.checkpoints + 1
                case FailureDecided() if transition.decision != "noop":
                    _tell(told, transition, entry.n, entry.t)
                case FirstCauseRevised(attempt=attempt, failure=failure):
                    told.setbacks = [_revised(item, attempt, failure) for item in told.setbacks]
                case _:
                    continue
    return told


def _tell(told: _Told, decided: FailureDecided, n: int, t: float) -> None:
    failure = decided.failure
    told.setbacks.append(
        Setback(
            n=n,
            t=t,
            attempt=failure.attempt,
            cause=row_error(failure.error, failure.rank, failure.node),
            decision=decided.decision,
            reason=decided.reason,
            budget=decided.budget,
            spent=decided.spent,
            limit=decided.limit,
            left=_left(decided.spent, decided.limit),
            others=decided.others,
        )
    )
    if decided.budget is not None:
        told.spent[decided.budget] = decided.spent


def _revised(item: Setback, attempt: int, failure: Failure) -> Setback:
    if item.attempt != attempt:
        return item
    cause = row_error(failure.error, failure.rank, failure.node)
    return msgspec.structs.replace(item, cause=cause, revised=True)


def _left(spent: int, limit: int) -> int | None:
    return None if limit < 0 else max(0, limit - spent)


def _budgets(told: _Told) -> tuple[BudgetLeft, ...]:
    found: list[BudgetLeft] = []
    for name, setting in SETTINGS.items():
        spent, limit = told.spent.get(name, 0), int(getattr(told.failure, setting.removeprefix("failure.")))
        found.append(BudgetLeft(name=name, spent=spent, limit=limit, left=_left(spent, limit)))
    return tuple(found)
