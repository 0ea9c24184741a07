"""The story in a few lines: what came of the run, what failed first, what was decided, what is left of each budget."""

from __future__ import annotations

from typing import Literal

import msgspec

from runfold.controller.budgets import SETTINGS
from runfold.events.base import Document
from runfold.events.config import FailureConfig
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
from runfold.replay.goodput import Goodput, goodput
from runfold.replay.history import History, end_name
from runfold.replay.incidents import Incident, incidents
from runfold.replay.rows import RowError, row_error


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
    """A run at a glance. `duration_s` is the run's clock at the last entry, also while it goes on (`ended` false)."""

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


def story(history: History) -> Story:
    """Return the story of a history; raise `CannotRead` when it holds no entry."""
    head = history.head
    told = _told(history)
    return Story(
        run=history.run,
        name=told.name,
        entrypoint=told.entrypoint,
        state=told.state,
        ended=end_name(told.state) is not None,
        reason=told.reason,
        duration_s=history.links[head.n].entry.t,
        accepted_at=history.links[0].entry.at,
        attempts=told.attempts,
        num_workers=told.num_workers,
        reports=told.reports,
        checkpoints=told.checkpoints,
        checkpoint=told.checkpoint,
        goodput=goodput(history),
        setbacks=tuple(told.setbacks),
        incidents=incidents(history),
        budgets=_budgets(told),
        warnings=told.warnings,
        entries=len(history.links),
        skipped=len(history.strays),
        trouble=history.trouble,
    )


def _told(history: History) -> _Told:
    told = _Told()
    told.reports = sum([len(entry.inputs) for entry in history.entries])
    for entry in history.telling:
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
