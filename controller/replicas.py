"""Replica groups: which of them are replaced while the others train on, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from runfold.controller.words import listed, ranks
from runfold.events.base import relative
from runfold.events.edges import state_name
from runfold.events.failures import ErrorInfo, Failure
from runfold.events.replicas import (
    REPLACED_IN,
    find_replica,
    hit_by,
    is_done,
    members,
    replica_size,
    started,
    waits_for_place,
)
from runfold.events.transitions import ReplicaGroupReplaced

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from runfold.events.base import Cause
    from runfold.events.replicas import Replica
    from runfold.events.state import Group, Place, RunState
    from runfold.events.transitions import RankLaid

_ALONE: Final = "while nobody else trains"


def size_of(state: RunState) -> int | None:
    """Return how many ranks a replica group of the run has; None when it has none."""
    return replica_size(state.job.scaling, state.job.backend)


def failing(state: RunState, failures: tuple[Failure, ...]) -> tuple[int, ...]:
    """Return the replica groups to be replaced by themselves; none when the whole group has to begin again.

    Somebody must be there who trains on: a group whose ranks are all in user code, or done.
    """
    group, size = state.group, size_of(state)
    if group is None or size is None or state_name(state.phase) not in REPLACED_IN:
        return ()
    hit = frozenset(number for failure in failures for number in hit_by(group, failure, size))
    if not any(_trains_on(group, number, size) for number in _numbers(group, size) if number not in hit):
        return ()
    places = _places(group, hit, size)
    left = vacated(state, failures, hit)
    if not all(group.places[i].healthy or group.places[i].left is not None or i in left for i in places):
        return ()
    if left and (whole := state.job.scaling.slice) is not None and whole.hosts > 1:
        return ()  # with a host its slice is lost, and other groups may be on it
    return () if any(_lights(group, group.places[i]) for i in left) else tuple(sorted(hit))


def vacated(state: RunState, failures: tuple[Failure, ...], replicas: Collection[int]) -> tuple[int, ...]:
    """Return the places of these replica groups, by number, that are gone with the failures, or about to be."""
    group, size = state.group, size_of(state)
    if group is None or size is None:
        return ()
    taken = {failure.node for failure in failures if failure.kind == "preempted"}
    here = [(i, group.places[i]) for i in _places(group, replicas, size) if group.places[i].left is None]
    if taken and state.notice is not None:
        # Also where other ranks of theirs had returned, which begin again with them; but not from under others.
        shared = {laid.place for laid in group.layout if not _is_over(group, laid.rank // size, replicas, size)}
        taken.update(place.node for i, place in here if place.node in state.notice.nodes and i not in shared)
    late = any(failure.kind == "start_timeout" for failure in failures)
    return tuple(i for i, place in here if place.lost or place.node in taken or (late and place.ready is None))


def _is_over(group: Group, number: int, replicas: Collection[int], size: int) -> bool:
    return number in replicas or is_done(group, number, size)


def _places(group: Group, replicas: Iterable[int], size: int) -> list[int]:
    return sorted({laid.place for number in replicas for laid in _laid(group, number, size)})


def _lights(group: Group, place: Place) -> bool:
    """Whether the groups find each other by what is at a place: with it they all have to begin again."""
    ready = place.ready
    return ready is not None and group.lighthouse == f"http://{ready.addr}:{ready.spare_port}"


def _numbers(group: Group, size: int) -> range:
    return range(len(group.ranks) // size)


def _trains_on(group: Group, number: int, size: int) -> bool:
    down = find_replica(group.replicas, number)
    return (down is None or not down.down) and started(group, number, size)


def _trained_on(group: Group, size: int) -> int:
    """Return how many groups are at work: those that are down are not, nor those whose ranks have all returned."""
    laid = {laid.rank // size for laid in group.layout}
    return sum(not is_done(group, number, size) for number in laid)


def _laid(group: Group, number: int, size: int) -> list[RankLaid]:
    mine = members(number, size)
    before = find_replica(group.replicas, number)
    return [laid for laid in (*group.layout, *(before.laid if before is not None else ())) if laid.rank in mine]


# --- back again


def bring_back(state: RunState, group: Group) -> tuple[ReplicaGroupReplaced, ...]:
    """Lay the groups out again that are down and need not wait any more: all at the same time."""
    if not group.replicas:
        return ()
    due = [
        one
        for one in group.replicas
        if one.down and one.not_before_t <= state.t and all(group.places[laid.place].healthy for laid in one.laid)
    ]
    first = max(rank.index for rank in group.ranks) + 1
    others = _trained_on(group, size_of(state) or 1)
    return tuple(_replaced(state, group, one, first, others) for one in due)


def _replaced(state: RunState, group: Group, one: Replica, first: int, others: int) -> ReplicaGroupReplaced:
    layout = tuple(replace(laid, life=one.life) for laid in one.laid)
    start = state.checkpoint.name if state.checkpoint is not None else None
    nodes = listed(list(dict.fromkeys(group.places[laid.place].node for laid in layout)))
    begins = f"from {start}" if start is not None else "from nothing"
    return ReplicaGroupReplaced(
        group=one.group,
        life=one.life,
        layout=layout,
        checkpoint=start,
        first=first,
        cause=relative(one.cause, state.n),
        reason=(
            f"replica group {one.group} ({ranks(len(layout))} on {nodes}) begins its life {one.life} {begins}, "
            + (
                f"while {others} other{'s' if others != 1 else ''} train{'s' if others == 1 else ''} on"
                if others
                else _ALONE
            )
        ),
    )


def too_late(state: RunState, group: Group) -> tuple[Failure, ...]:
    """Return the failures of replaced groups that did not start in time, if the timer has fired."""
    if not state.fired or not group.replicas:
        return ()
    fired = next((one for one in state.fired if one.timer == "replica"), None)
    size = size_of(state)
    if fired is None or size is None:
        return ()
    placed = (one for one in group.replicas if not waits_for_place(group, one))
    due = (one for one in placed if one.deadline_t is not None and one.deadline_t <= state.t)
    return tuple(_late(state, group, one, size, fired.cause) for one in due if not started(group, one.group, size))


def _late(state: RunState, group: Group, one: Replica, size: int, cause: Cause) -> Failure:
    timeouts = state.job.timeouts
    absent = [group.ranks[rank] for rank in members(one.group, size) if not group.ranks[rank].started]
    unready = [group.places[laid.place].node for laid in one.laid if not group.places[laid.place].healthy]
    if unready:
        limit = f"no runner on {listed(list(dict.fromkeys(unready)))} within timeouts.start_timeout_s"
        message, node = f"{limit} ({timeouts.start_timeout_s:g} s)", unready[0]
    else:
        who = listed([f"rank {rank.rank} on {rank.node}" for rank in absent])
        limit = f"{who} did not start again within timeouts.import_timeout_s"
        message, node = f"{limit} ({timeouts.import_timeout_s:g} s)", absent[0].node
    return Failure(
        kind="start_timeout",
        attempt=group.attempt,
        node=node,
        error=ErrorInfo(type="StartTimeout", message=message, kind="start_timeout"),
        t=state.t,
        cause=cause,
        rank=absent[0].rank,
        life=one.life,
    )


def replacing_words(state: RunState, replicas: tuple[int, ...], wait_s: float) -> str:
    """Say what is done about groups that are replaced."""
    group, size = state.group, size_of(state)
    others = (
        group is not None
        and size is not None
        and any(number not in replicas and not is_done(group, number, size) for number in _numbers(group, size))
    )
    which = f"replica group{'s' if len(replicas) > 1 else ''} {listed([str(number) for number in replicas])}"
    when = f" in {wait_s:g} s at the earliest" if wait_s > 0 else ""
    return f"replacing {which}{when}{' while the others train on' if others else f', {_ALONE}'}"
