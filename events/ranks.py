"""Observing ranks: what runners say of them, once it is counted and judged. The draft keeps the reports itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from msgspec.structs import replace

from runfold.events.evidence import of_rank_exited, of_rank_failed
from runfold.events.facts import RankExited, RankFailed, RankReturned, RankStarted
from runfold.events.state import RankExit

if TYPE_CHECKING:
    from runfold.events.beats import RankPhase
    from runfold.events.draft import Draft
    from runfold.events.facts import AnyRankFact, Reported
    from runfold.events.state import Place, Rank, RunState

# A rank goes up this ladder and never down, so that the order in which different sources speak does not matter.
_LADDER: Final[dict[RankPhase, int]] = {
    "waiting": 0,
    "starting": 1,
    "running": 2,
    "exited": 3,
    "failed": 4,
    "returned": 4,
}


def raised(rank: Rank, phase: RankPhase) -> RankPhase:
    """Return the phase of a rank that goes up the ladder, if that is up."""
    return phase if _LADDER[phase] > _LADDER[rank.phase] else rank.phase


def rank_told(draft: Draft, item: AnyRankFact) -> None:
    """Observe what counts of a rank, save its reports."""
    match item:
        case RankStarted():
            _started(draft, item)
        case RankExited():
            _exited(draft, item)
        case RankFailed():
            draft.raise_rank(item.rank, "failed")
            draft.fail(of_rank_failed(item, node=draft.rank(item.rank).node, t=draft.when(item), cause=draft.cause))
        case RankReturned():
            _returned(draft, item)
        case _:
            assert_never(item)


def rank_told_late(draft: Draft, item: AnyRankFact) -> None:
    """Keep what a fact of an ended attempt says of its failure."""
    if isinstance(item, RankFailed):
        draft.add_late(of_rank_failed(item, node=item.source, t=draft.when(item), cause=draft.cause))
    elif isinstance(item, RankExited) and not item.asked and not item.returned:
        draft.add_late(of_rank_exited(item, node=item.source, t=draft.when(item), cause=draft.cause))


def shows_a_start(state: RunState, item: Reported | RankReturned) -> bool:
    """Whether what last failed to start has started now: a rank in user code may still have to meet the others.

    Of replica groups that is the one which failed; the others may have been at work all the time.
    """
    failure = state.failure
    if failure is None or failure.attempt != state.attempt:
        return True
    return item.life > failure.life if item.rank == failure.rank else failure.rank is None and item.life > 1


def _started(draft: Draft, item: RankStarted) -> None:
    rank, group, port = draft.rank(item.rank), draft.group, item.next_port
    draft.set_rank(replace(rank, started=True, phase=raised(rank, "running")))
    if group is not None and port is not None:
        for number, place in enumerate(group.places):
            if place.source == item.source and place.ready is not None and place.ready.port != port:
                group = replace(group, places=_holding(group.places, number, port))
    draft.put_group(group)


def _holding(places: tuple[Place, ...], number: int, port: int) -> tuple[Place, ...]:
    place = places[number]
    ready = None if place.ready is None else replace(place.ready, port=port)
    return (*places[:number], replace(place, ready=ready), *places[number + 1 :])


def _returned(draft: Draft, item: RankReturned) -> None:
    draft.raise_rank(item.rank, "returned")
    if draft.now.startup_streak and shows_a_start(draft.state, item):
        draft.now = replace(draft.now, startup_streak=0)
    if item.rank == 0:
        draft.now = replace(draft.now, return_value=item.value, return_blob=item.blob)
    if item.unread:
        checkpoints = draft.now.checkpoints
        draft.now = replace(draft.now, checkpoints=replace(checkpoints, unread=checkpoints.unread or draft.cause))
    draft.put_group(draft.group)


def _exited(draft: Draft, item: RankExited) -> None:
    before = draft.rank(item.rank)
    found = RankExit(
        exit_code=item.exit_code, signal=item.signal, peak_memory_bytes=item.peak_memory_bytes, asked=item.asked
    )
    draft.set_rank(replace(before, exit=found, phase=raised(before, "exited")))
    draft.put_group(draft.group)
    told = before.phase in ("returned", "failed") or item.returned
    if not told and (draft.at_work or not item.asked):
        draft.fail(of_rank_exited(item, node=before.node, t=draft.when(item), cause=draft.cause))
