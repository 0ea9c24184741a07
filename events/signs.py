"""Observing signs of life, and their absence: what conclusions about silence and progress change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.evidence import told_of_node
from runfold.events.state import Stuck

if TYPE_CHECKING:
    from runfold.events.conclusions import ProgressStopped, SilenceConcluded
    from runfold.events.draft import Draft


def silent(draft: Draft, item: SilenceConcluded) -> None:
    """A runner that is lost takes its node along; a silence of 0 s says that the source is heard again."""
    source = draft.state.sources.get(item.source)
    if source is None or item.incarnation not in (0, source.incarnation):
        return
    draft.silences[item.source] = item.silence_s or None
    group, before = draft.group, draft.state.group
    # Lost by an earlier entry: what this one says of the group may stand in any order.
    known = {place.source for place in before.places if place.lost} if before is not None else set[str]()
    known |= {other.node for other in group.failures if other.kind == "node"} if group is not None else set()
    lost = [place for place in group.places if place.source == item.source and place.left is None] if group else []
    if group is None or not item.lost or not lost or known & {lost[0].source, lost[0].node}:
        return
    draft.lose(frozenset({item.source}))
    # It was lost when its silence began: what failed since then, even in the attempt before, may be its doing.
    began_t = max(0.0, draft.t - item.silence_s)
    last = draft.state.failure
    for attempt in sorted({group.attempt, last.attempt if last is not None else group.attempt}):
        told = told_of_node(
            "node", "NodeLost", item.reason, attempt=attempt, node=lost[0].node, t=began_t, cause=draft.cause
        )
        (draft.fail if attempt == group.attempt else draft.add_late)(told)


def stuck(draft: Draft, item: ProgressStopped) -> None:
    """Ranks without progress; none named says that all of them move again.

    What was looked at already need not be looked at again when more ranks are found to be stuck as well.
    """
    group = draft.group
    if group is None or not draft.at_work or item.attempt not in (0, group.attempt):
        return
    # Who begins again is not stuck: that was found of its life before.
    again = {rank.rank for rank in group.ranks if rank.life > 1 and not rank.started}
    ranks = tuple(rank for rank in item.ranks if rank not in again)
    if item.ranks and not ranks:
        return
    # As earlier entries left it: of what this one says twice, or takes back and says again, nothing is new.
    standing = draft.state.group
    before = standing.stuck if standing is not None and standing.attempt == group.attempt else None
    looked = before is not None and before.looked and before.limit_s == item.limit_s
    found = Stuck(ranks=ranks, quiet_s=item.quiet_s, limit_s=item.limit_s, cause=draft.cause, looked=looked)
    draft.group = replace(group, stuck=found if ranks else None)
