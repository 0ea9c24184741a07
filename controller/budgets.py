"""What a failure costs: which budget, how much of it is spent, and how long to wait before another try."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runfold.events.attempts import repeated
from runfold.events.base import Value
from runfold.events.failures import FAILURE_KINDS
from runfold.events.limits import STARTUP_BACKOFF_MAX_S, STARTUP_BACKOFF_S
from runfold.events.state import Scheduling

if TYPE_CHECKING:
    from runfold.events.config import FailureConfig
    from runfold.events.failures import Budget, Failure
    from runfold.events.state import RunState

SETTINGS: Final[dict[Budget, str]] = {
    "worker": "failure.max_failures",
    "startup": "failure.controller_failure_limit",
    "preemption": "failure.max_preemption_failures",
    "hang": "failure.max_hangs",
}
"""Budget → the job's field that limits it."""

NEVER_AGAIN: Final = (
    "nothing is tried again: all failure limits are 0, as they always are in local mode (num_workers=0)"
)
"""Why a run ends at once that may spend nothing; in local mode whatever limits its user has set are not used."""

_DOUBLINGS_MAX: Final = 32


class Charge(Value, frozen=True, kw_only=True):
    """One unit of a budget: `before` were spent of `limit` (−1: unlimited)."""

    budget: Budget
    before: int
    limit: int

    @property
    def allowed(self) -> bool:
        """Whether there is a unit left."""
        return self.limit < 0 or self.before < self.limit

    @property
    def words(self) -> str:
        """The unit being spent, in words."""
        of = f" of {self.limit}" if self.limit >= 0 else " (no limit)"
        return f"{self.budget} failure {self.before + 1}{of}"

    @property
    def exhausted(self) -> str:
        """That there is none left, in words."""
        if self.limit == 0:
            return f"no {self.budget} failure is allowed ({SETTINGS[self.budget]} = 0)"
        return f"{self.budget} failure {self.before + 1}, and {SETTINGS[self.budget]} allows {self.limit}"


def never_again(failure: FailureConfig) -> bool:
    """Return whether a job allows no failure of any kind."""
    limits = (
        failure.max_failures,
        failure.controller_failure_limit,
        failure.max_preemption_failures,
        failure.max_hangs,
    )
    return not any(limits)


def charge(state: RunState, failure: Failure) -> Charge | None:
    """Return what a retry after this failure would cost; None for a failure that is never retried."""
    rule = FAILURE_KINDS[failure.kind]
    group = state.group
    if failure.kind == "placement" and group is not None and group.never is not None:
        return None
    # A rank that met it is in user code, also while others are not: only a look before anybody trains is never retried.
    at_work = failure.kind == "storage" and failure.rank is not None
    budget = rule.starting if isinstance(state.phase, Scheduling) and not at_work else rule.running
    if budget is None:
        return None
    spent = state.budgets[budget]
    after = state.job.failure.reset_after_progress
    progressed = after is not None and group is not None and group.progress >= after
    return Charge(budget=budget, before=0 if progressed else spent.spent, limit=spent.limit)


def repeated_too_often(state: RunState, failure: Failure) -> str | None:
    """Return why the run stops early when the same error came at the same step too often in a row, else None."""
    limit = state.job.failure.repeat_limit
    if limit is None or failure.rank is None:
        return None
    count = repeated(state, failure).count
    if count < limit:
        return None
    times = "the first time" if count == 1 else f"{count} times in a row"
    return f"the same error at the same step {times}, and failure.repeat_limit is {limit}"


def backoff_s(state: RunState, budget: Budget | None, spent: int) -> float:
    """Return how long to wait before the next attempt, in seconds."""
    config = state.job.failure
    if budget == "startup":
        return min(STARTUP_BACKOFF_S * 2.0 ** min(state.startup_streak, _DOUBLINGS_MAX), STARTUP_BACKOFF_MAX_S)
    wait_s = min(config.backoff_s * 2.0 ** min(max(spent - 1, 0), _DOUBLINGS_MAX), config.backoff_max_s)
    if budget == "preemption" and state.notice is not None:
        # Notices within coalesce_s are one: what else is about to go is known before a new group is placed.
        return max(wait_s, state.notice.noticed_t + state.job.timeouts.coalesce_s - state.t)
    return wait_s
