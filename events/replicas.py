"""Replica groups: ranks that hold the whole model together, and are replaced together while the others train on.

Ranks 0 … size − 1 are group 0, and so on. A replacement is a new life of the group's ranks within the attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.base import Cause, Value
from runfold.events.checkpoints import passed, ranks_in
from runfold.events.edges import IllegalEdge, state_name
from runfold.events.gathering import left
from runfold.events.limits import CHECKPOINTS_LEFT_MAX_COUNT
from runfold.events.transitions import RankLaid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.base import Moment
    from runfold.events.checkpoints import Gathering
    from runfold.events.config import BackendConfig, ScalingConfig
    from runfold.events.failures import Failure
    from runfold.events.state import Group, Place, Rank, RunState, Stuck
    from runfold.events.transitions import FailureDecided, ReplicaGroupReplaced

REPLACED_IN: frozenset[str] = frozenset(("running", "preempting"))
"""States in which replica groups are replaced while others train on."""


class Replica(Value, frozen=True, kw_only=True):
    """A replica group that has failed in this attempt. `life`: of its ranks, in force from the decision on.

    `down`: it is not laid out again yet, and will not be before `not_before_t`. `deadline_t`: until then its ranks must
    have started, or the runner on its other place; while another place is waited for, until then that is all that is
    done about it, and it is `late` from then on. `start`: the checkpoint that they begin from, `first`: the index of
    their first report within the attempt. `laid`: where its ranks were while it is down.
    """

    group: int
    life: int
    cause: Cause
    down: bool = True
    not_before_t: float = 0.0
    deadline_t: float | None = None
    late: bool = False
    start: str | None = None
    first: int = 0
    laid: tuple[RankLaid, ...] = ()


# --- who belongs together


def replica_size(scaling: ScalingConfig, backend: BackendConfig) -> int | None:
    """Return how many ranks each replica group has; None when all ranks stand and fall together."""
    return scaling.replica_group_size or (1 if backend.kind == "torchft" else None)


def replica_of(rank: int, size: int) -> int:
    """Return the replica group of a rank."""
    return rank // size


def members(replica: int, size: int) -> range:
    """Return the ranks of a replica group."""
    return range(replica * size, (replica + 1) * size)


def hit_by(group: Group, failure: Failure, size: int) -> frozenset[int]:
    """Return the replica groups that a failure takes along: its rank's, those on its node, or all.

    A group whose ranks have all returned has nothing on its node any more that could be lost.
    """
    if failure.rank is not None and failure.kind != "preempted":
        return frozenset((replica_of(failure.rank, size),))
    if not failure.node:
        return frozenset(replica_of(rank.rank, size) for rank in group.ranks)
    down = [one.laid for one in group.replicas if one.down]
    laid = (*group.layout, *(one for ones in down for one in ones))
    here = frozenset(replica_of(one.rank, size) for one in laid if group.places[one.place].node == failure.node)
    return frozenset(number for number in here if not is_done(group, number, size))


def find_replica(replicas: tuple[Replica, ...], number: int) -> Replica | None:
    """Return what is known of a replica group; None for one that is in its first life."""
    return next((one for one in replicas if one.group == number), None)


def started(group: Group, number: int, size: int) -> bool:
    """Whether all ranks of a replica group have entered user code in their present life."""
    return all(group.ranks[rank].started for rank in members(number, size))


def is_done(group: Group, number: int, size: int) -> bool:
    """Whether all ranks of a replica group have returned."""
    return all(group.ranks[rank].phase == "returned" for rank in members(number, size))


def replica_deadline(group: Group, size: int) -> float | None:
    """Return when the first of the replaced groups that have their places should have started."""
    placed = (one for one in group.replicas if not waits_for_place(group, one))
    due = (one.deadline_t for one in placed if not started(group, one.group, size))
    return min((t for t in due if t is not None), default=None)


def waits_for_place(group: Group, one: Replica) -> bool:
    """Whether another place is wanted for one that a group which is down had."""
    return one.down and any(group.places[laid.place].left is not None for laid in one.laid)


def placement_deadline(group: Group) -> float | None:
    """Return until when the first group that waits for another place does so, come what may."""
    due = (one.deadline_t for one in group.replicas if not one.late and waits_for_place(group, one))
    return min((t for t in due if t is not None), default=None)


def grown_late(group: Group, deadline_t: float) -> Group:
    """Return the group with those marked that should have had another place by then."""
    replicas = (
        replace(one, late=True)
        if one.deadline_t is not None and one.deadline_t <= deadline_t and waits_for_place(group, one)
        else one
        for one in group.replicas
    )
    return replace(group, replicas=tuple(replicas))


def opened(state: RunState, places: tuple[Place, ...]) -> tuple[Place, ...]:
    """Return places with their doors: the port that a runner holds is where replica groups meet in this attempt."""
    if replica_size(state.job.scaling, state.job.backend) is None:
        return places
    return tuple(
        replace(place, door=place.ready.port) if not place.door and place.ready is not None else place
        for place in places
    )


def lighthouse(state: RunState, place: Place) -> str:
    """Return where torchft's lighthouse is: where the job says, else at the runner of rank 0."""
    backend = state.job.backend
    if backend.kind != "torchft":
        return ""
    told = backend.options.get("lighthouse")
    if isinstance(told, str) and told:
        return told
    return f"http://{place.ready.addr}:{place.ready.spare_port}" if place.ready is not None else ""


# --- what transitions change of them


def went_down(state: RunState, group: Group, transition: FailureDecided, n: int) -> RunState:
    """Take replica groups out of the group: what is still told of their ranks' lives so far is late.

    What they had files in, and not all of their ranks have passed, will never be whole.
    """
    size = replica_size(state.job.scaling, state.job.backend)
    if size is None or state_name(state.phase) not in REPLACED_IN or not transition.replicas:
        raise IllegalEdge(f"no replica group of a run that is {state_name(state.phase)} can be replaced by itself")
    gone = frozenset(rank for number in transition.replicas for rank in members(number, size))
    if not gone < frozenset(range(len(group.ranks))):
        raise IllegalEdge("all replica groups fail together: that is the end of the attempt")
    places = tuple(replace(one, left=n) if i in transition.vacated else one for i, one in enumerate(group.places))
    new = [_down(state, replace(group, places=places), transition, number, size) for number in transition.replicas]
    lives = {one.group: one.life for one in new}
    ranks = tuple(
        _waiting(rank, lives[replica_of(rank.rank, size)]) if rank.rank in gone else rank for rank in group.ranks
    )
    left_over = tuple(one.name for one in state.checkpoints.gathering if is_torn(group, one, gone))
    # Those of other groups are still to be decided upon: what was behind them is waited for.
    open_ones = tuple(one for one in group.failures if one.rank is not None and one.rank not in gone)
    checkpoints = replace(
        state.checkpoints,
        gathering=tuple(one for one in state.checkpoints.gathering if one.name not in left_over),
        torn=(*state.checkpoints.torn, *left_over)[-CHECKPOINTS_LEFT_MAX_COUNT:],
    )
    after = replace(
        group,
        ranks=ranks,
        layout=tuple(
            laid for laid in group.layout if laid.rank not in gone and not _is_behind(group, laid, transition, size)
        ),
        replicas=_merged(group.replicas, new),
        places=places,
        failures=open_ones,
        failed=len(open_ones),
        stuck=_still_stuck(group.stuck, gone),
        progress=0,
    )
    return replace(state, group=after, checkpoints=left(checkpoints, left_over), fired=())


def _down(state: RunState, group: Group, transition: FailureDecided, number: int, size: int) -> Replica:
    one = Replica(
        group=number,
        life=_life(group, number) + 1,
        cause=transition.failure.cause,
        not_before_t=transition.not_before_t or 0.0,
        laid=_were_laid(group, number, size),
    )
    if not waits_for_place(group, one):
        return one
    return replace(one, deadline_t=max(state.t, one.not_before_t) + state.job.timeouts.start_timeout_s)


def _is_behind(group: Group, laid: RankLaid, transition: FailureDecided, size: int) -> bool:
    """Whether a rank is done, and so is its group, at a place that is left: whoever has the next is not to start it."""
    return laid.place in transition.vacated and is_done(group, replica_of(laid.rank, size), size)


def is_torn(group: Group, one: Gathering, gone: frozenset[int]) -> bool:
    """Whether some of these ranks have files in a checkpoint that others of them will never pass."""
    have = frozenset(ranks_in(one.ranks)) & gone
    return bool(have) and any(not passed(group.ranks[rank], one) for rank in gone - have)


def _still_stuck(stuck: Stuck | None, gone: frozenset[int]) -> Stuck | None:
    """Return what is left of ranks without progress: those that train on, or do not."""
    ranks = tuple(rank for rank in stuck.ranks if rank not in gone) if stuck is not None else ()
    return replace(stuck, ranks=ranks) if stuck is not None and ranks else None


def _were_laid(group: Group, number: int, size: int) -> tuple[RankLaid, ...]:
    before = find_replica(group.replicas, number)
    mine = members(number, size)
    return tuple(one for one in group.layout if one.rank in mine) or (before.laid if before is not None else ())


def _life(group: Group, number: int) -> int:
    before = find_replica(group.replicas, number)
    return before.life if before is not None else 1


def _waiting(rank: Rank, life: int) -> Rank:
    return replace(rank, life=life, phase="waiting", started=False, exit=None)


def _merged(replicas: Iterable[Replica], new: Iterable[Replica]) -> tuple[Replica, ...]:
    by_number = {one.group: one for one in (*replicas, *new)}
    return tuple(by_number[number] for number in sorted(by_number))


def replaced(state: RunState, transition: ReplicaGroupReplaced, at: Moment) -> RunState:
    """Lay a replica group out again; from here on its ranks have `import_timeout_s` to start."""
    group = state.group
    before = find_replica(group.replicas, transition.group) if group is not None else None
    if group is None or before is None or not before.down or transition.life != before.life:
        raise IllegalEdge(f"replica group {transition.group} is not down in life {transition.life}")
    after = replace(
        before,
        down=False,
        laid=(),
        deadline_t=at.t + state.job.timeouts.import_timeout_s,
        start=transition.checkpoint,
        first=transition.first,
    )
    laid = {one.rank: one for one in transition.layout}
    ranks = tuple(_laid(rank, group, transition) if rank.rank in laid else rank for rank in group.ranks)
    changed = replace(
        group,
        ranks=ranks,
        layout=tuple(sorted((*group.layout, *transition.layout), key=lambda one: one.rank)),
        places=opened(state, group.places),
        replicas=_merged(group.replicas, (after,)),
    )
    return replace(state, group=changed, homes=tuple(rank.node for rank in ranks))


def _laid(rank: Rank, group: Group, transition: ReplicaGroupReplaced) -> Rank:
    laid = next(one for one in transition.layout if one.rank == rank.rank)
    place = group.places[laid.place]
    # What was reported before it began is behind it: whether with files of its own was seen then.
    index, named = max(rank.index, transition.first - 1), max(other.named for other in group.ranks)
    return replace(rank, node=place.node, source=place.source, phase="starting", index=index, named=named)
