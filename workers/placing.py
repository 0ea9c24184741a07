"""What a supervisor should do about one run, given its newest assignment and what is held for it here. Pure."""

from __future__ import annotations

from typing import Final, Literal

from runfold.events.assignment import Assignment
from runfold.events.base import Value
from runfold.workers.pools.local import Demand

EARLY_END_PATIENCE_S: Final = 2.0
"""A runner that ended as if told to: so long is waited for the assignment that told it."""


class RunnerHere(Value, frozen=True, kw_only=True):
    """A runner of the run. `ended_s` is when its end was seen; `code` and `signal` how, as far as known.

    `told` is the attempt in which its end was told: a later attempt on the same places has to hear of it too.
    """

    node: str
    ended_s: float | None = None
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    told: int = 0

    @property
    def as_told(self) -> bool:
        """Whether it ended as one does that was told to."""
        return self.code == 0


class RunHere(Value, frozen=True, kw_only=True):
    """What this supervisor holds of a run, and what it has said about it.

    `asked`: the attempt whose demand is in the queue. `held`: the attempt whose places are held. `refused`: the
    attempt that can never be placed. `released`: the attempt whose group is known to hold nothing. `orphans`: the
    attempt whose places, held by nobody here, were told as lost. `superseded`: a newer supervisor speaks for the pool.
    """

    asked: int | None = None
    held: int | None = None
    refused: int | None = None
    released: int | None = None
    orphans: int | None = None
    superseded: bool = False
    runners: tuple[RunnerHere, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether a runner still lives."""
        return any(runner.ended_s is None for runner in self.runners)


class Ask(Value, frozen=True, kw_only=True):
    """Put the demand into the queue (or say that it can never be met)."""

    demand: Demand


class Withdraw(Value, frozen=True, kw_only=True):
    """Take the run out of the queue."""


class StopRunners(Value, frozen=True, kw_only=True):
    """Tell the runners to stop, should they not have read it themselves."""

    reason: str
    grace_s: float


class SayLost(Value, frozen=True, kw_only=True):
    """Say that the runner of a node is gone, how and why."""

    node: str
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    orphan: bool = False


class Free(Value, frozen=True, kw_only=True):
    """Give the slots back: nothing of the group lives."""


class SayReleased(Value, frozen=True, kw_only=True):
    """Say that the group holds nothing any more."""


class Forget(Value, frozen=True, kw_only=True):
    """The run is over, here too."""


Step = Ask | Withdraw | StopRunners | SayLost | Free | SayReleased | Forget


class Placing(Value, frozen=True, kw_only=True):
    """The steps to take now, and when to ask again although nothing changed."""

    steps: tuple[Step, ...] = ()
    wake_at: float | None = None


def placing(assignment: Assignment, here: RunHere, now: float) -> Placing:
    """Return what to do about the run of `assignment`."""
    if here.superseded:
        return _stop(assignment, here, ())
    match assignment.want:
        case "place":
            return _place(assignment, here, now)
        case "train":
            return _train(assignment, here, now)
        case "stop":
            return _stop(assignment, here, (SayReleased(),) if here.released != assignment.attempt else ())
        case "gone":
            return _stop(assignment, here, (Forget(),))


def _place(assignment: Assignment, here: RunHere, now: float) -> Placing:
    attempt = assignment.attempt
    if here.held == attempt:
        return _lost(assignment, here, now)
    if here.held is not None:
        # The places of an earlier attempt: the word to stop was overtaken by this one.
        return _stop(assignment, here, ())
    if assignment.places:
        return _orphans(assignment, here)
    if attempt in (here.asked, here.refused):
        return Placing()
    return Placing(steps=(Ask(demand=demand_of(assignment)),))


def _train(assignment: Assignment, here: RunHere, now: float) -> Placing:
    return _lost(assignment, here, now) if here.held is not None else _orphans(assignment, here)


def _orphans(assignment: Assignment, here: RunHere) -> Placing:
    """The log has places that nobody here holds: an earlier supervisor of this pool did."""
    withdraw = (Withdraw(),) if here.asked is not None else ()
    if here.orphans == assignment.attempt:
        return Placing(steps=withdraw)
    reason = "its runner ended with the supervisor that had started it"
    nodes = tuple(SayLost(node=place.node, reason=reason, orphan=True) for place in assignment.places)
    return Placing(steps=(*withdraw, *nodes))


def _lost(assignment: Assignment, here: RunHere, now: float) -> Placing:
    steps: list[Step] = []
    wake: list[float] = []
    for runner in here.runners:
        if runner.ended_s is None or runner.told >= assignment.attempt:
            continue
        due = runner.ended_s + (EARLY_END_PATIENCE_S if runner.as_told else 0.0)
        if now >= due:
            steps.append(SayLost(node=runner.node, code=runner.code, signal=runner.signal, reason=runner.reason))
        else:
            wake.append(due)
    return Placing(steps=tuple(steps), wake_at=min(wake, default=None))


def _stop(assignment: Assignment, here: RunHere, after: tuple[Step, ...]) -> Placing:
    steps: list[Step] = []
    if here.asked is not None:
        steps.append(Withdraw())
    if here.alive:
        reason = assignment.stop.reason if assignment.stop is not None else _because(assignment.want)
        grace_s = assignment.stop.grace_s if assignment.stop is not None else 0.0
        return Placing(steps=(*steps, StopRunners(reason=reason, grace_s=grace_s)))
    if here.held is not None:
        steps.append(Free())
    return Placing(steps=(*steps, *after))


def _because(want: Literal["place", "train", "stop", "gone"]) -> str:
    return "the run is over" if want == "gone" else f"the group is wanted otherwise ({want})"


def demand_of(assignment: Assignment) -> Demand:
    """Return what the assignment's group needs."""
    return Demand(
        run=assignment.run,
        attempt=assignment.attempt,
        num_workers=assignment.num_workers,
        resources=assignment.resources,
        priority=assignment.priority,
        accepted_at=assignment.accepted_at,
        strategy=assignment.placement_strategy,
        excluded=assignment.excluded_nodes,
    )
