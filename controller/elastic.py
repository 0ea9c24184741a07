"""Elastic runs: how many ranks fit, and when a group changes its size.

A decision is a function of what the pool said last (`CapacityChanged`) and of the run's clock. A running group keeps
its size for the dwell, `scaling.elastic_resize_monitor_interval_s`, unless somebody asked for another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.controller.sizes import Hold, Resize, wanted_workers
from runfold.controller.words import ranks
from runfold.events.replicas import replica_size
from runfold.events.slices import whole_slices
from runfold.events.state import Running

if TYPE_CHECKING:
    from collections.abc import Collection

    from runfold.controller.sizes import Scaling
    from runfold.events.base import Cause
    from runfold.events.conclusions import Timer
    from runfold.events.config import PlacementStrategy, ScalingConfig
    from runfold.events.elastic import Room
    from runfold.events.facts import CapacityChanged
    from runfold.events.job import Job
    from runfold.events.state import Group, RunState


class ElasticScaling:
    """As many ranks as there is room for, between the job's min and what was asked for, at most its max."""

    name = "elastic"

    def idle(self, state: RunState) -> Scaling:
        """Say how many ranks fit now; hold while they are fewer than min."""
        fits, low = fitting(state), state.job.scaling.min_workers
        if fits is None:
            return Hold(f"the pool {state.job.pool} has not said what it has room for")
        if fits < low:
            return Hold(f"room for {ranks(fits)}, and scaling.num_workers allows no fewer than {low}")
        size = min(fits, wanted_workers(state))
        return Resize(size, f"{ranks(size)}: room for {fits}", fits=True, cause=_told_by(state))

    def running(self, state: RunState) -> Scaling:
        """Say the size that the group should have, once it has had its present one for the dwell."""
        group = state.group
        size = better_size(state)
        if group is None or size is None:
            return Hold("no other size is better")
        if state.t < settled_t(state):
            return Hold("the size has changed too short a time ago")
        reason = f"from {group.num_workers} to {ranks(size)}: {_because(state, size)}; {_balance(state, group, size)}"
        cause = state.elastic.asked if _was_asked(state) else _told_by(state)
        return Resize(size, reason, fits=True, saved_first=True, cause=cause)


# --- how many fit


def fitting(state: RunState) -> int | None:
    """Return how many ranks have room now, the group's own places counted; None when the pool has not said."""
    if state.elastic.room is None:
        return None
    notice = state.notice
    # Also those whose time is over: the next group stays off them until they are gone, or are said to stay.
    off = away(state).union(notice.nodes if notice is not None else ())
    return fitting_in(state.elastic.room, state.capacity or {}, off, state.job)


def fitting_in(told: Room | CapacityChanged, slots: dict[str, int], off: Collection[str], job: Job) -> int:
    """Return how many ranks of a job have room, as a pool told it; `slots` of each node, of which some stay `off`."""
    scaling = job.scaling
    fits = _fitting(told, off, scaling.placement_strategy, scaling.worker_resources, slots)
    fits = min(_in_slices(scaling, fits, told.slices), scaling.max_workers)
    return fits - fits % (replica_size(scaling, job.backend) or 1)


def _in_slices(scaling: ScalingConfig, fits: int, intact: int | None = None) -> int:
    """Return how many ranks fit if TPU slices are had whole, of which so many are intact."""
    if (whole := scaling.slice) is None:
        return fits
    return whole_slices(fits, whole.workers(scaling.worker_resources.get("TPU", 0.0)), intact)


def away(state: RunState) -> frozenset[str]:
    """Return the nodes that the next group stays off: those excluded, taken back, and about to be."""
    taken = state.notice.nodes if state.notice is not None else ()
    return frozenset((*state.excluded, *state.away, *taken))


def _fitting(
    room: Room | CapacityChanged,
    off: Collection[str],
    strategy: PlacementStrategy,
    each: dict[str, float],
    slots: dict[str, int],
) -> int:
    by_node = room.room
    if by_node is None and room.fits is None:
        # A pool that counts slots alone.
        by_node = {node: int(count / max(each.get("CPU", 1.0), 1e-9)) for node, count in slots.items()}
    if by_node is None:
        return room.fits or 0
    fits = _placeable([count for node, count in by_node.items() if node not in off], strategy)
    return fits if room.fits is None else min(fits, room.fits)


def _placeable(counts: list[int], strategy: PlacementStrategy) -> int:
    """Return how many ranks a strategy can place on nodes that hold so many each."""
    if strategy == "STRICT_PACK":
        return max(counts, default=0)
    return sum(count > 0 for count in counts) if strategy == "STRICT_SPREAD" else sum(counts)


def can_do_without(state: RunState, node: str) -> bool:
    """Whether the pool's other nodes could hold the run's fewest ranks, were they empty."""
    room, scaling = state.elastic.room, state.job.scaling
    by_node = room.whole if room is not None and room.whole is not None else state.capacity or {}
    others = [count for name, count in by_node.items() if name not in (*state.excluded, node)]
    return _in_slices(scaling, _placeable(others, scaling.placement_strategy)) >= scaling.min_workers


# --- when a running group changes


def better_size(state: RunState) -> int | None:
    """Return the size that a running group should have instead of its own; None when its own is right, or must do."""
    fits, group = fitting(state), state.group
    if fits is None or group is None or fits < state.job.scaling.min_workers:
        return None
    size = min(fits, wanted_workers(state))
    return size if size != group.num_workers else None


def keeps_its_size(state: RunState) -> bool:
    """Whether the next attempt of a group that fails now would have its size."""
    fits, group = fitting(state), state.group
    if not state.job.scaling.elastic or fits is None or group is None:
        return True
    return min(fits, wanted_workers(state)) == group.num_workers


def settled_t(state: RunState) -> float:
    """Return from when on a running group may change its size."""
    since_t = state.phase.since_t
    if _was_asked(state):
        return since_t
    dropped_t = state.elastic.dropped_t
    last_t = since_t if dropped_t is None else max(since_t, dropped_t)
    return round(last_t + state.job.scaling.elastic_resize_monitor_interval_s, 6)


def size_timer(state: RunState) -> tuple[Timer, float] | None:
    """Return the timer that an elastic run's size waits for, and when it is due; None when it waits for none."""
    if not isinstance(state.phase, Running) or not state.job.scaling.elastic:
        return None
    plan = state.elastic.plan
    timer: tuple[Timer, float] | None = None
    if plan is not None:
        timer = ("resize", plan.deadline_t)
    elif better_size(state) is not None:
        timer = ("dwell", settled_t(state))
    return timer if timer is not None and timer[1] > state.t else None


def _was_asked(state: RunState) -> bool:
    """Whether somebody asked for a size since this group began."""
    asked_t = state.elastic.asked_t
    return asked_t is not None and asked_t >= state.phase.since_t


def _told_by(state: RunState) -> Cause | None:
    return state.elastic.room.cause if state.elastic.room is not None else None


# --- in words


def waiting_for_room(state: RunState) -> str | None:
    """Say what an elastic run without a group waits for; None when it is not for room."""
    fits, low = fitting(state), state.job.scaling.min_workers
    if not state.job.scaling.elastic or (fits is not None and fits >= low):
        return None
    if fits is None:
        return f"the word of pool {state.job.pool} on what it has room for"
    return f"room for {ranks(low)} at least: there is room for {fits}"


def _because(state: RunState, size: int) -> str:
    fits = fitting(state)
    if _was_asked(state):
        return f"as asked for, with room for {fits}"
    wanted = wanted_workers(state)
    if size == wanted and fits is not None and fits > size:
        return f"room for {fits}, and {wanted} were asked for"
    return f"the pool has room for {fits}"


def _balance(state: RunState, group: Group, size: int) -> str:
    """Say what the change brings and what it costs, as far as the log knows."""
    share = (size - group.num_workers) / group.num_workers
    gain = f"gain: {share:+.0%} ranks" if share > 0 else f"{share:+.0%} ranks"
    return f"{gain}; cost: a restart, and {unsaved_words(state)}"


def unsaved(state: RunState) -> int:
    """Return how many reports of the run came after its newest checkpoint."""
    committed = state.checkpoint.index + 1 if state.checkpoint is not None else 0
    return max(last_index(state) + 1 - committed, 0)


def last_index(state: RunState) -> int:
    """Return the index in the run of the last report that any rank made; −1 before the first."""
    indexes = [rank.index for rank in state.group.ranks] if state.group is not None else []
    return state.checkpoints.base + max(indexes, default=-1)


def unsaved_words(state: RunState) -> str:
    """Say what is done again after a restart."""
    count = unsaved(state)
    reports = f"{count} report{'s' if count != 1 else ''}"
    if state.checkpoint is None:
        return f"{reports} done again, for there is no checkpoint yet" if count else "nothing done so far"
    return f"{reports} since {state.checkpoint.name} done again" if count else f"nothing since {state.checkpoint.name}"
