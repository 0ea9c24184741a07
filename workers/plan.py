"""What a runner should do next, given the newest assignment and what runs here. Pure.

Asked again whenever something changes: what is decided depends on the whole picture, so that a late, doubled or
skipped assignment ends in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runfold.events.assignment import Assignment, Mark
from runfold.events.base import Value
from runfold.events.config import Timeouts
from runfold.events.transitions import RankLaid

ABANDONED_GRACE_S: Final = 1.0
"""Patience with ranks when nobody is left who could ask for more: the supervisor is gone."""


class Held(Value, frozen=True, kw_only=True):
    """A rank process here, alive or still being started. Times are the runner's clock."""

    attempt: int
    rank: int
    life: int
    slot: int
    asked_s: float | None = None
    killed: bool = False


class Ordered(Value, frozen=True, kw_only=True):
    """The supervisor's word to stop, with the assignment that it has this from; or its silence for ever."""

    reason: str
    grace_s: float
    said_by: Mark | None = None


class StartRank(Value, frozen=True, kw_only=True):
    """Start this rank of this attempt."""

    attempt: int
    laid: RankLaid


class EndRank(Value, frozen=True, kw_only=True):
    """Ask a rank to end (SIGTERM), or make it (SIGKILL)."""

    rank: int
    kill: bool
    reason: str


class Leave(Value, frozen=True, kw_only=True):
    """Nothing runs here and nothing will: see that the facts are out, then end."""

    reason: str


Step = StartRank | EndRank | Leave


class Plan(Value, frozen=True, kw_only=True):
    """The steps to take now, and when to ask again although nothing changed."""

    steps: tuple[Step, ...] = ()
    wake_at: float | None = None


def plan(
    source: str,
    assignment: Assignment | None,
    ordered: Ordered | None,
    held: Sequence[Held],
    newest: dict[int, tuple[int, int]],
    now: float,
) -> Plan:
    """Return what the runner that speaks as `source` should do.

    `held` is what lives here; `newest` is, by rank, the (attempt, life) last started here, so that an ended rank
    is not started twice.
    """
    stop = ordered or _told_to_stop(source, assignment)
    if stop is not None:
        return _end(held, stop.reason, stop.grace_s, now) if held else Plan(steps=(Leave(reason=stop.reason),))
    if assignment is None:
        return Plan()
    if assignment.want != "train":
        # Ranks of an attempt that has failed: the next one waits for a place, or for its time.
        return _end(held, "its attempt has failed", _timeouts(assignment).restart_grace_s, now)
    here = {laid.rank: laid for laid in assignment.layout if assignment.places[laid.place].source == source}
    over = [one for one in held if not _is_wanted(one, here.get(one.rank), assignment.attempt)]
    ending = _end(over, f"attempt {assignment.attempt} goes on without it", _timeouts(assignment).restart_grace_s, now)
    taken = {one.slot for one in held}
    starting = tuple(
        StartRank(attempt=assignment.attempt, laid=laid)
        for laid in here.values()
        if laid.its_slot not in taken and (assignment.attempt, laid.life) > newest.get(laid.rank, (0, 0))
    )
    return Plan(steps=(*ending.steps, *starting), wake_at=ending.wake_at)


def may_have_tasks(assignment: Assignment | None, ordered: Ordered | None) -> bool:
    """Whether a runner that is told to stop may not have heard of its last tasks yet.

    The word to stop and the assignment that it is from come on two links: what is to be deleted with the last commit
    may still be on its way, and nobody else would do it. One that is to end at once, or knows no assignment, has none.
    """
    if assignment is None or ordered is None or ordered.said_by is None or ordered.grace_s <= 0:
        return False
    return assignment.mark < ordered.said_by


def _told_to_stop(source: str, assignment: Assignment | None) -> Ordered | None:
    if assignment is None:
        return None
    timeouts = _timeouts(assignment)
    match assignment.want:
        case "stop" | "gone":
            reason = assignment.stop.reason if assignment.stop is not None else f"the run is {assignment.want}"
            grace_s = assignment.stop.grace_s if assignment.stop is not None else timeouts.stop_grace_s
            return Ordered(reason=reason, grace_s=grace_s)
        case "train" if all(place.source != source or place.left is not None for place in assignment.places):
            return Ordered(reason="the group has no place here any more", grace_s=timeouts.restart_grace_s)
        case "place" if _has_left(source, assignment):
            return Ordered(reason="the group has left this place", grace_s=timeouts.restart_grace_s)
        case "train" | "place":
            return None


def _has_left(source: str, assignment: Assignment) -> bool:
    here = [place for place in assignment.places if place.source == source]
    return bool(here) and all(place.left is not None for place in here)


def _timeouts(assignment: Assignment) -> Timeouts:
    return assignment.job.timeouts if assignment.job is not None else Timeouts()


def _is_wanted(one: Held, laid: RankLaid | None, attempt: int) -> bool:
    return laid is not None and one.attempt == attempt and one.life == laid.life


def _end(held: Sequence[Held], reason: str, grace_s: float, now: float) -> Plan:
    """Ask each once; kill each whose patience is over; say when the next one's will be."""
    steps: list[Step] = []
    deadlines: list[float] = []
    for one in held:
        if one.killed:
            continue
        if one.asked_s is None:
            steps.append(EndRank(rank=one.rank, kill=grace_s <= 0, reason=reason))
            deadlines.append(now + grace_s)
        elif now >= one.asked_s + grace_s:
            steps.append(EndRank(rank=one.rank, kill=True, reason=reason))
        else:
            deadlines.append(one.asked_s + grace_s)
    return Plan(steps=tuple(steps), wake_at=min(deadlines, default=None))
