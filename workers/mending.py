"""What a supervisor does about places that a group has given up: others are found for them. Pure.

A group of replica groups is at work meanwhile; any other keeps its runners on the places that are sound, and waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.base import Value
from runfold.workers.pools.local import Demand, Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.assignment import Assignment
    from runfold.workers.placing import RunHere

PREFIX = "place-"
"""The demand for another place stands in the queue beside the run's, under this and its number."""


class Mend(Value, frozen=True, kw_only=True):
    """Put the demand for another place into the queue: for the one with this number, given up by entry `left`."""

    place: int
    left: int
    demand: Demand


class GiveUp(Value, frozen=True, kw_only=True):
    """Give the slots on a node back: the group has left it, and nothing lives there."""

    node: str


class Dismiss(Value, frozen=True, kw_only=True):
    """End a runner that an earlier supervisor started on a place of which the log never heard."""

    node: str


def mending(assignment: Assignment, here: RunHere, key: str, demand: Demand) -> tuple[Mend | GiveUp | Dismiss, ...]:
    """Return what to do about the places of a group that it has left.

    `demand` is that of the whole group, `key` what its name is followed by for each other demand of the run.
    """
    if all(place.left is None for place in assignment.places):
        return ()
    steps: list[Mend | GiveUp | Dismiss] = []
    runners = {runner.node: runner for runner in here.runners}
    # A runner speaks under the name of its node: there is one on each, as long as it lives.
    stands = [place.node for place in assignment.places if place.left is None]
    taken = list(stands)
    taken += [runner.node for runner in here.runners if runner.ended_s is None]
    at_work = assignment.want == "train"
    if not at_work:
        steps += _strays(assignment, here)
    for number, place in enumerate(assignment.places):
        if place.left is None:
            continue
        runner = runners.get(place.node)
        if runner is not None and runner.ended_s is not None and place.node not in stands:
            steps.append(GiveUp(node=place.node))
        name = f"{assignment.run}{key}{PREFIX}{number}"
        off = tuple(sorted({*assignment.excluded_nodes, *taken}))
        # A node that stays after all, or comes back, is looked at again by a demand that still waits.
        if (number, place.left) not in here.mended or here.mends_off.get(name, off) != off:
            wanted = replace(
                demand,
                run=name,
                num_workers=place.slots,
                strategy="STRICT_PACK",
                mends=at_work,
                of=assignment.run,
                whole=None if at_work else demand,
                excluded=off,
                selectors=demand.selectors[:1] if len(demand.selectors) == 1 else (),
            )
            steps.append(Mend(place=number, left=place.left, demand=wanted))
    return tuple(steps)


def _strays(assignment: Assignment, here: RunHere) -> list[GiveUp | Dismiss]:
    known = {place.node for place in assignment.places} | set(here.granted)
    strays = [runner for runner in here.runners if runner.node not in known]
    return [Dismiss(node=one.node) if one.ended_s is None else GiveUp(node=one.node) for one in strays]


def waits_of(waits: Mapping[str, Waiting], key: str) -> dict[str, Waiting]:
    """Return how each run waits, given how each demand does: one that waits for several places waits for all of them.

    Other demands of a run, for what is done beside its group, keep nothing of it waiting.
    """
    runs: dict[str, Waiting] = {}
    for name, waiting in waits.items():
        run, _, other = name.partition(key)
        if other and not other.startswith(PREFIX):
            continue
        before = runs.get(run)
        runs[run] = waiting if before is None else replace(before, needed=before.needed + waiting.needed)
    return runs
