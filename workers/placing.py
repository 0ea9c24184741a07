"""What a supervisor should do about one run, given its newest assignment and what is held for it here. Pure."""

from __future__ import annotations

from typing import Final, Literal

from runfold.events.assignment import Assignment
from runfold.events.base import Value
from runfold.events.config import Timeouts
from runfold.workers.mending import Dismiss, GiveUp, Mend, mending
from runfold.workers.pools.local import Demand

SEPARATOR: Final = "/"
"""Between a run and what else of it stands in the queue."""
EARLY_END_PATIENCE_S: Final = 2.0
"""A runner that ended as if told to: so long is waited for the assignment that told it.

So long also for the one that holds its place, which an earlier supervisor started just before: it is found and adopted.
"""


class RunnerHere(Value, frozen=True, kw_only=True):
    """A runner of the run. `ended_s` is when its end was seen; `code` and `signal` how, as far as known.

    `told` is the attempt in which its end was told: a later attempt on the same places has to hear of it too.
    `orderly`: it took its place's file away before it ended. `unseen`: it ended, and nobody could see how.
    `place_taken`: it found another runner of the run in its place.
    """

    node: str
    ended_s: float | None = None
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    told: int = 0
    orderly: bool = False
    unseen: bool = False
    place_taken: bool = False

    @property
    def as_told(self) -> bool:
        """Whether it ended as one does that was told to, or may have."""
        return self.code == 0 or self.orderly or self.unseen


class RunHere(Value, frozen=True, kw_only=True):
    """What this supervisor holds of a run, and what it has said about it.

    `asked`: the attempt whose demand is in the queue. `held`: the attempt whose places are held. `refused`: the
    attempt that can never be placed. `released`: the attempt whose group is known to hold nothing. `orphans`: the
    attempt whose places, held by nobody here, were told as lost. `superseded`: a newer supervisor speaks for the pool.
    `mended`: the places that others were asked for, by number and the entry that gave them up. `mends_off`: the nodes
    that such demands stay off, by name, while they wait. `granted`: the nodes that such demands have got.
    `off`: the nodes that what was asked for, or refused, was to stay off.

    An heir is a supervisor after another one. `unsure`: the log does not name it yet, so the last words of the one
    before may still come. `settled_s`: until then a runner of the one before may turn up. `adopted`: the places were
    given by the one before. `strays`: runners live that are no part of what is held.
    """

    asked: int | None = None
    held: int | None = None
    refused: int | None = None
    released: int | None = None
    orphans: int | None = None
    mended: tuple[tuple[int, int], ...] = ()
    mends_off: dict[str, tuple[str, ...]] = {}
    granted: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    superseded: bool = False
    runners: tuple[RunnerHere, ...] = ()
    unsure: bool = False
    settled_s: float = 0.0
    adopted: bool = False
    strays: bool = False

    @property
    def alive(self) -> bool:
        """Whether a runner still lives."""
        return self.strays or any(runner.ended_s is None for runner in self.runners)


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


Step = Ask | Withdraw | StopRunners | SayLost | Mend | GiveUp | Dismiss | Free | SayReleased | Forget


class Placing(Value, frozen=True, kw_only=True):
    """The steps to take now, and when to ask again although nothing changed."""

    steps: tuple[Step, ...] = ()
    wake_at: float | None = None


def placing(assignment: Assignment, here: RunHere, now: float) -> Placing:
    """Return what to do about the run of `assignment`."""
    if here.superseded:
        return _stop(assignment, here)
    match assignment.want:
        case "place":
            return Placing() if here.unsure else _place(assignment, here, now)
        case "train":
            return Placing() if here.unsure else _held(assignment, here, now)
        case "stop" if assignment.attempt in (here.released, 0):  # or no group was wanted yet
            return _stop(assignment, here)
        case "stop":
            return _stop(assignment, here, SayReleased(), _settling(here, now))
        case "gone":
            return _stop(assignment, here, Forget(), _settling(here, now))


def _settling(here: RunHere, now: float) -> float | None:
    """Return until when it is not certain that nothing is left of an earlier supervisor's; None once it is."""
    return here.settled_s if now < here.settled_s else None


def _place(assignment: Assignment, here: RunHere, now: float) -> Placing:
    attempt = assignment.attempt
    moved = here.held not in (None, attempt) and not assignment.kept
    if moved or (here.adopted and not assignment.places):
        # The places of an earlier attempt: the word to stop was overtaken by this one. Or places that an earlier
        # supervisor gave, and of which the log does not know.
        return _stop(assignment, here)
    if here.held is not None or assignment.places:
        return _held(assignment, here, now)
    if attempt in (here.asked, here.refused) and here.off == assignment.excluded_nodes:
        return Placing()
    return Placing(steps=(Ask(demand=demand_of(assignment)),))


def _held(assignment: Assignment, here: RunHere, now: float) -> Placing:
    lost, gone = _lost(assignment, here, now), _orphans(assignment, here, now)
    wakes = [wake for wake in (lost.wake_at, gone.wake_at) if wake is not None]
    mended = mending(assignment, here, SEPARATOR, demand_of(assignment))
    return Placing(steps=(*gone.steps, *lost.steps, *mended), wake_at=min(wakes, default=None))


def _orphans(assignment: Assignment, here: RunHere, now: float) -> Placing:
    """Find places of the log that nobody here holds: an earlier supervisor of this pool did."""
    withdraw = (Withdraw(),) if here.asked is not None else ()
    known = {runner.node for runner in here.runners}
    nodes = [place.node for place in assignment.places if place.node not in known and place.left is None]
    if not nodes or here.orphans == assignment.attempt:
        return Placing(steps=withdraw)
    if now < here.settled_s:
        return Placing(steps=withdraw, wake_at=here.settled_s)
    reason = "the supervisor that had started it is gone, and so is the runner: nobody could see how it ended"
    return Placing(steps=(*withdraw, *(SayLost(node=node, reason=reason, orphan=True) for node in nodes)))


def _lost(assignment: Assignment, here: RunHere, now: float) -> Placing:
    steps: list[Step] = []
    wake: list[float] = []
    waits = assignment.want == "place" and any(place.left is not None for place in assignment.places)
    stands = {place.node for place in assignment.places if place.left is None} | set(here.granted)
    for runner in here.runners:
        if runner.ended_s is None or runner.told >= assignment.attempt:
            continue
        if waits and runner.node not in stands:
            continue  # the group has left it: that is no loss any more
        patient = runner.as_told or runner.place_taken
        due = runner.ended_s + (EARLY_END_PATIENCE_S if patient else 0.0)
        if now >= due:
            steps.append(SayLost(node=runner.node, code=runner.code, signal=runner.signal, reason=runner.reason))
        else:
            wake.append(due)
    return Placing(steps=tuple(steps), wake_at=min(wake, default=None))


def _stop(assignment: Assignment, here: RunHere, after: Step | None = None, wait_until: float | None = None) -> Placing:
    """End what lives, give the slots back, and then do `after`, though not before `wait_until`."""
    steps: list[Step] = []
    if here.asked is not None:
        steps.append(Withdraw())
    if here.alive:
        reason = assignment.stop.reason if assignment.stop is not None else _because(assignment.want)
        grace_s = assignment.stop.grace_s if assignment.stop is not None else 0.0
        return Placing(steps=(*steps, StopRunners(reason=reason, grace_s=grace_s)))
    if here.held is not None or here.mended:
        steps.append(Free())
    if after is None or wait_until is not None:
        return Placing(steps=tuple(steps), wake_at=wait_until)
    return Placing(steps=(*steps, after))


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
        selectors=_selectors(assignment.label_selector),
        accelerator_type=assignment.accelerator_type,
        prepared=tuple(assignment.runtime_env),
        slice=assignment.slice,
        start_within_s=(assignment.job.timeouts if assignment.job is not None else Timeouts()).start_timeout_s,
    )


def _selectors(given: dict[str, str] | list[dict[str, str]] | None) -> tuple[dict[str, str], ...]:
    """Return a job's label selector as the pool knows it: one for all ranks, or one for each; none for none."""
    if isinstance(given, list):
        return tuple(given) if any(given) else ()
    return (given,) if given else ()
