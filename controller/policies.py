"""Policies: how many ranks a run gets, and what is done about a failure. Pure functions behind two small Protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

from runfold.controller.budgets import NEVER_AGAIN, charge, never_again, repeated_too_often
from runfold.controller.elastic import ElasticScaling
from runfold.controller.places import MENDED
from runfold.controller.sizes import Hold, Resize, wanted_workers
from runfold.events.base import Value
from runfold.events.notices import ENDS_WITH_SUPERVISOR
from runfold.events.timing import AS_THEY_STAND

if TYPE_CHECKING:
    from runfold.controller.sizes import Scaling
    from runfold.events.failures import Budget, Failure
    from runfold.events.state import RunState


class Choice(Value, frozen=True, kw_only=True):
    """What is done about a failure: `retry` spends a unit of `budget`, so that `spent` of `limit` are gone then."""

    decision: Literal["retry", "raise", "noop"]
    reason: str
    budget: Budget | None = None
    spent: int = 0
    limit: int = 0


class ScalingPolicy(Protocol):
    """How many ranks a run gets. Must be a pure function of the state."""

    @property
    def name(self) -> str:
        """What `ControllerChanged` calls it."""
        ...

    def idle(self, state: RunState) -> Scaling:
        """Say how many ranks the next attempt gets, or `Hold` to wait for facts that change the answer."""
        ...

    def running(self, state: RunState) -> Scaling:
        """Say whether a running group should be restarted at another size."""
        ...


class FailurePolicy(Protocol):
    """What is done about the first cause of an attempt's failure. Must be a pure function of its arguments."""

    @property
    def name(self) -> str:
        """What `ControllerChanged` calls it."""
        ...

    def choose(self, state: RunState, failure: Failure) -> Choice:
        """Say what is done; the state still has the budgets as they were."""
        ...


class FixedScaling:
    """The size the job asks for; another one only on request."""

    name = "fixed"

    def idle(self, state: RunState) -> Scaling:
        """Always the wanted size, whatever the pool has: it queues."""
        wanted = wanted_workers(state)
        return Resize(wanted, f"{wanted} rank{'s' if wanted != 1 else ''} as asked for")

    def running(self, state: RunState) -> Scaling:
        """Another size only when one was asked for."""
        wanted = wanted_workers(state)
        if state.group is None or state.group.num_workers == wanted:
            return Hold()
        return Resize(wanted, f"from {state.group.num_workers} to {wanted} ranks, as asked for")


class ScalingByJob:
    """Elastic for a job with `num_workers = (min, max)`, even (n, n); fixed for any other."""

    name = "by-job"

    def __init__(self) -> None:
        self._fixed, self._elastic = FixedScaling(), ElasticScaling()

    def idle(self, state: RunState) -> Scaling:
        """Say what the job's policy says."""
        return self._of(state).idle(state)

    def running(self, state: RunState) -> Scaling:
        """Say what the job's policy says."""
        return self._of(state).running(state)

    def _of(self, state: RunState) -> ScalingPolicy:
        """Choose; logs of deciders that knew the fixed policy alone are decided again as they were."""
        fixed = not state.job.scaling.elastic or f"scaling:{FixedScaling.name}" in state.decider.policies
        return self._fixed if fixed else self._elastic


class BudgetedFailures:
    """Retry while the failure's budget lasts."""

    name = "budgets"

    def choose(self, state: RunState, failure: Failure) -> Choice:
        """Spend one unit of the failure's budget, or end the run."""
        cost = charge(state, failure)
        if cost is None:
            return Choice(decision="raise", reason="never retried")
        if (often := repeated_too_often(state, failure)) is not None:
            return Choice(decision="raise", reason=often, budget=cost.budget, spent=cost.before, limit=cost.limit)
        if not cost.allowed:
            spent = NEVER_AGAIN if never_again(state.job.failure) else cost.exhausted
            return Choice(decision="raise", reason=spent, budget=cost.budget, spent=cost.before, limit=cost.limit)
        return Choice(decision="retry", reason=cost.words, budget=cost.budget, spent=cost.before + 1, limit=cost.limit)


class Policies(Value, frozen=True, kw_only=True):
    """The policies that a controller decides with."""

    scaling: ScalingPolicy
    failure: FailurePolicy

    @property
    def names(self) -> tuple[str, ...]:
        """What `ControllerChanged` records of them."""
        chosen = (f"scaling:{self.scaling.name}", f"failure:{self.failure.name}")
        return (*chosen, MENDED, ENDS_WITH_SUPERVISOR, AS_THEY_STAND)


DEFAULT: Final = Policies(scaling=ScalingByJob(), failure=BudgetedFailures())
