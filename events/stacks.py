"""What ranks were doing when they were looked at: as their runner sees it from outside, and by their own stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from msgspec.structs import replace

from runfold.events.base import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.state import RunState
    from runfold.events.tasks import OpenTask

Doing = Literal["collective", "busy", "native", "idle", "blocked", "stopped", "gone"]
DOING: Final[dict[Doing, str]] = {
    "collective": "waits for the other ranks",
    "busy": "runs Python code",
    "native": "is busy in native code, which keeps the interpreter to itself",
    "idle": "waits in Python code",
    "blocked": "waits in native code",
    "stopped": "is stopped by a signal: nothing of it runs",
    "gone": "has no process",
}
"""What a rank may be doing, in words."""


class RankSeen(Value, frozen=True, kw_only=True):
    """A rank as it was found.

    `where` is the innermost frame of the user's code in its main thread; `waits_in` the collective it takes part in;
    `stacks` the digest of the blob with the stacks of all its threads; `trouble` why there are none. `nccl` is what
    NCCL itself says of the job, where it answers.
    """

    rank: int
    life: int
    doing: Doing
    where: str | None = None
    waits_in: str | None = None
    stacks: str | None = None
    trouble: str | None = None
    nccl: str | None = None

    @property
    def words(self) -> str:
        """What it was doing, in words."""
        what = f"{DOING[self.doing]} in {self.waits_in}" if self.waits_in is not None else DOING[self.doing]
        what = f"{what}, at {self.where}" if self.where is not None else what
        return f"{what}; {self.nccl}" if self.nccl is not None else what


def look_begun(state: RunState) -> RunState:
    """Count a look at the ranks; what made no progress, or is waited for too long, is looked at by it."""
    group, gathering = state.group, state.checkpoints.gathering
    if group is None:
        return state
    stuck = replace(group.stuck, looked=True) if group.stuck is not None else None
    if any(one.due is not None for one in gathering):
        looked = tuple(replace(one, looked=True) if one.due is not None else one for one in gathering)
        state = replace(state, checkpoints=replace(state.checkpoints, gathering=looked))
    return replace(state, group=replace(group, looks=group.looks + 1, stuck=stuck))


def look_ended(state: RunState, found: OpenTask) -> RunState:
    """Keep what a look has found of the present attempt's ranks: the newest of each."""
    group = state.group
    if group is None or found.end is None or not found.end.seen:
        return state
    lives = {rank.rank: rank.life for rank in group.ranks}
    new = {one.rank: one for one in found.end.seen if lives.get(one.rank) == one.life}
    return replace(state, group=replace(group, seen=_merged(group.seen, new)))


def _merged(old: Iterable[RankSeen], new: dict[int, RankSeen]) -> tuple[RankSeen, ...]:
    merged = {**{one.rank: one for one in old}, **new}
    return tuple(merged[rank] for rank in sorted(merged))
