"""The status: what the log says of a run, for people and programs. Rebuilt at any time from the log alone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from runfold.controller.effects import waiting_for_cause
from runfold.controller.elastic import waiting_for_room
from runfold.controller.places import looked_for
from runfold.controller.replicas import size_of
from runfold.controller.timeouts import timeouts
from runfold.controller.words import listed
from runfold.events.edges import state_name
from runfold.events.replicas import find_replica, members, replica_of, waits_for_place
from runfold.events.state import (
    Aborted,
    Errored,
    Finished,
    Initializing,
    Preempting,
    Rescheduling,
    Resizing,
    Restarting,
    Running,
    Scheduling,
    ShuttingDown,
)
from runfold.events.status import (
    BudgetStatus,
    CheckpointStatus,
    DroppedStatus,
    ErrorStatus,
    Exclusion,
    RankStatus,
    Status,
)
from runfold.events.tasks import HOOK, SEAL

if TYPE_CHECKING:
    from runfold.events.base import Cause
    from runfold.events.entry import Head
    from runfold.events.replicas import Replica
    from runfold.events.stacks import RankSeen
    from runfold.events.state import Group, Rank, RunState


def status(state: RunState, head: Head, accepted_at: str) -> Status:
    """Return the status of the state after `head`; `accepted_at` is the `at` of entry 0."""
    phase, group = state.phase, state.group
    return Status(
        run=state.run,
        name=state.job.name or "",
        state=state_name(phase),
        since=later(accepted_at, phase.since_t),
        since_t=phase.since_t,
        reason=phase.reason,
        cause=cause_words(phase.cause),
        attempt=state.attempt,
        world_size=group.num_workers if group is not None else 0,
        ranks=_ranks(group, size_of(state)),
        budgets={name: BudgetStatus(spent=part.spent, limit=part.limit) for name, part in state.budgets.items()},
        metrics=state.metrics,
        checkpoint=state.checkpoint.name if state.checkpoint is not None else None,
        checkpoints=_checkpoints(state),
        unsettled=_unsettled(state),
        error=_error(state),
        waiting=waiting_for(state),
        timeouts=timeouts(state),
        warnings=state.warnings,
        requests={said.id: "accepted" if said.accepted else f"refused: {said.reason}" for said in state.answered},
        return_value=state.return_value,
        head=head,
        t=state.t,
        epoch=state.epoch,
        controller=state.controller,
        accepted_at=accepted_at,
        dropped=DroppedStatus(
            stale=state.dropped.stale, foreign=state.dropped.foreign, malformed=state.dropped.malformed
        ),
        excluded_nodes=_excluded(state),
    )


def _excluded(state: RunState) -> dict[str, Exclusion]:
    """Return why the next group stays off nodes; what is over stays off none."""
    if state.terminal:
        return {}
    why: dict[str, Exclusion] = dict.fromkeys(
        state.notice.nodes if state.notice is not None else (), "will be taken back"
    )
    why |= dict.fromkeys(state.away, "was taken back")
    why |= dict.fromkeys(state.excluded, "failed too often")
    return dict(sorted(why.items()))


def _checkpoints(state: RunState) -> tuple[CheckpointStatus, ...]:
    order = -1.0 if state.job.checkpoint.checkpoint_score_order == "min" else 1.0
    return tuple(
        CheckpointStatus(
            name=one.name,
            index=one.index,
            attempt=one.attempt,
            status=one.status,
            score=None if one.score is None else order * one.score,
            doubtful=one.doubtful,
        )
        for one in state.checkpoints.kept
    )


def _unsettled(state: RunState) -> tuple[int, ...]:
    """Return the reports of this attempt whose checkpoint waits for ranks, or to be sealed."""
    indices = [one.index for one in state.checkpoints.gathering]
    for one in state.tasks:
        index = one.task.arguments.get("index")
        if one.task.kind == SEAL and isinstance(index, int):
            indices.append(index)
    return tuple(sorted(index - state.checkpoints.base for index in indices))


def later(at: str, t: float) -> str:
    """Return the time `t` seconds after `at`, both RFC 3339; `at` itself when it cannot be read."""
    try:
        moment = datetime.fromisoformat(at) + timedelta(seconds=t)
    except (ValueError, OverflowError):
        return at
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def cause_words(cause: Cause) -> str:
    """Return a cause as people point at it: `entry 17, input 0`."""
    what = f"input {cause.input}" if cause.input is not None else f"transition {cause.transition}"
    return what if cause.entry is None else f"entry {cause.entry}, {what}"


def _ranks(group: Group | None, size: int | None) -> tuple[RankStatus, ...]:
    if group is None:
        return ()
    seen = {one.rank: one for one in group.seen}
    ranks = group.ranks
    if size is not None and group.replicas:
        # What a rank reported in an earlier life is no report of this one.
        ranks = tuple(replace(rank, index=-1, step=None) if _is_new(group, rank, size) else rank for rank in ranks)
    return tuple(_rank(rank, seen.get(rank.rank)) for rank in ranks)


def _is_new(group: Group, rank: Rank, size: int) -> bool:
    replica = find_replica(group.replicas, replica_of(rank.rank, size))
    return replica is not None and (replica.down or rank.index < replica.first)


def _rank(rank: Rank, seen: RankSeen | None) -> RankStatus:
    return RankStatus(
        rank=rank.rank,
        node=rank.node,
        phase=rank.phase,
        step=rank.step,
        index=rank.index,
        doing=seen.doing if seen is not None else None,
        where=seen.where if seen is not None else None,
        stacks=seen.stacks if seen is not None else None,
    )


def _error(state: RunState) -> ErrorStatus | None:
    """Show the last failure until the run is at work again, and for ever if it ended the run."""
    failure = state.failure
    match state.phase:
        case Running() | Preempting() | Resizing() | Finished() | Aborted() | Initializing():
            return None
        case ShuttingDown(next=end) if end != "errored":
            return None
        case Scheduling() | Rescheduling() | Restarting() | ShuttingDown() | Errored():
            pass
        case _:
            assert_never(state.phase)
    if isinstance(state.phase, ShuttingDown | Errored):
        failure = state.phase.failure or failure
    if failure is None:
        return None
    return ErrorStatus(
        rank=failure.rank,
        type=failure.error.type,
        message=failure.error.message,
        kind=failure.kind,
        where=failure.error.where,
        node=failure.node,
        attempt=failure.attempt,
    )


def waiting_for(state: RunState) -> str | None:
    """Return what the run waits for, in words; None while it is at work or over."""
    group, phase = state.group, state.phase
    match phase:
        case Scheduling():
            return _waiting_for_group(state, group)
        case Rescheduling() | Restarting():
            if phase.not_before_t > phase.since_t and not state.fired:
                return f"the back-off, until {phase.not_before_t:.1f} s on the run's clock"
            return _waiting_for_release(state) or waiting_for_room(state)
        case Resizing():
            return _waiting_for_release(state) or waiting_for_room(state)
        case ShuttingDown():
            return _waiting_for_release(state) or _waiting_for_tasks(state)
        case Running() | Preempting():
            return waiting_for_cause(state) or _waiting_for_replicas(state, group) or _quiet(group)
        case Initializing():
            return _waiting_for_tasks(state) or waiting_for_supervisor(state) or waiting_for_room(state)
        case Finished() | Errored() | Aborted():
            return None
        case _:
            assert_never(phase)


def _waiting_for_release(state: RunState) -> str | None:
    return f"the release of the group by {state.supervisor}" if state.held else None


def _waiting_for_tasks(state: RunState) -> str | None:
    asked = [f"the gate {one.task.arguments.get('hook')}" for one in state.tasks if one.task.kind == HOOK]
    pending = sum(one.validating for one in state.checkpoints.kept)
    if pending:
        asked.append(f"{pending} validation{'s' if pending != 1 else ''}")
    return listed(asked) or None


def waiting_for_supervisor(state: RunState) -> str | None:
    """Return that the pool's supervisor has never spoken; None when it has."""
    if state.supervisor in state.sources:
        return None
    return f"a supervisor of pool {state.job.pool}: none has spoken yet"


def _off(state: RunState) -> str:
    """Say which nodes the group stays off because they are taken back, and how that is changed."""
    taken = state.notice.nodes if state.notice is not None else ()
    nodes = sorted({*state.away, *taken})
    if not nodes:
        return ""
    undo = f"runfold preempt {state.run} --node {nodes[0]} --cancel"
    return f"; it stays off {listed(nodes)}, taken back: `{undo}` undoes it"


def _waiting_for_group(state: RunState, group: Group | None) -> str | None:
    if state.supervisor not in state.sources:
        return waiting_for_supervisor(state)
    if group is None:
        return None
    if not group.places:
        return f"{group.waiting or f'places in pool {state.job.pool}'}{_off(state)}"
    if not group.layout and (nodes := looked_for(group)):
        how = f": {group.waiting}" if group.waiting else f" in pool {state.job.pool}"
        return f"another place instead of that on {listed(list(nodes))}{how}{_off(state)}"
    unready = [place.node for place in group.places if not place.healthy]
    if unready:
        return f"the runner on {listed(unready)}"
    unstarted = [f"rank {rank.rank}" for rank in group.ranks if not rank.started]
    return f"the start of {listed(unstarted)}" if unstarted else None


def _waiting_for_replicas(state: RunState, group: Group | None) -> str | None:
    """Say what replica groups wait for that are to begin again while the others train on."""
    size = size_of(state)
    if group is None or size is None or not group.replicas:
        return None
    placeless = [str(one.group) for one in group.replicas if waits_for_place(group, one)]
    waits: list[str] = []
    if placeless:
        which = f"replica group{'s' if len(placeless) > 1 else ''} {listed(placeless)}"
        how = f": {group.waiting}" if group.waiting else ""
        waits.append(f"another place for {which}, on a node where the run has none{how}{_off(state)}")
    placed = [one for one in group.replicas if not waits_for_place(group, one)]
    waits += [what for one in placed if (what := _beginning(state, group, one, size)) is not None]
    return "; ".join(waits) or None


def _beginning(state: RunState, group: Group, one: Replica, size: int) -> str | None:
    """Say what a replica group with its places waits for before it trains again."""
    unready = list(
        dict.fromkeys(group.places[laid.place].node for laid in one.laid if not group.places[laid.place].healthy)
    )
    if one.down and one.not_before_t > state.t:
        return f"the back-off of replica group {one.group}, until {one.not_before_t:.1f} s on the run's clock"
    if one.down and unready:
        return f"the runner on {listed(unready)}, for replica group {one.group}"
    unstarted = [f"rank {rank}" for rank in members(one.group, size) if not group.ranks[rank].started]
    return f"the start of {listed(unstarted)}" if unstarted and not one.down else None


def _quiet(group: Group | None) -> str | None:
    if group is None or group.stuck is None:
        return None
    ranks = listed([f"rank {rank}" for rank in group.stuck.ranks])
    return f"{ranks}: no report for {group.stuck.quiet_s:g} s"
