"""Preemption notices: several are one, with all their nodes and the earliest deadline; and what is left of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.limits import AWAY_MAX_COUNT, PREEMPTION_WITHIN_MAX_S, PREEMPTION_WITHIN_S
from runfold.events.marks import Notice

if TYPE_CHECKING:
    from collections.abc import Collection

    from runfold.events.base import Cause


def noticed(
    held: Notice | None, nodes: tuple[str, ...], within_s: float | None, *, t: float, cause: Cause, reason: str
) -> Notice:
    """Return the notice in force after another one came at `t`."""
    new = Notice(
        nodes=tuple(sorted(taken_back((), tuple(sorted(set(nodes)))))),
        # A time is told in whole milliseconds: one that no clock will ever show cannot be.
        deadline_t=t + (PREEMPTION_WITHIN_S if within_s is None else min(max(within_s, 0.0), PREEMPTION_WITHIN_MAX_S)),
        noticed_t=t,
        cause=cause,
        reason=reason,
        unknown=within_s is None,
    )
    if held is None:
        return new
    first = min(held, new, key=lambda notice: (notice.deadline_t, notice.noticed_t, notice.reason))
    return replace(
        first,
        nodes=tuple(sorted(taken_back(held.nodes, new.nodes))),
        noticed_t=min(held.noticed_t, new.noticed_t),
    )


def cancelled(held: Notice | None, nodes: tuple[str, ...]) -> Notice | None:
    """Return what is left of a notice when these nodes stay after all."""
    if held is None:
        return None
    left = tuple(node for node in held.nodes if node not in nodes)
    return replace(held, nodes=left) if left else None


# --- nodes that were taken back


def taken_back(away: tuple[str, ...], nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes to stay off, the newest last, with these among them."""
    rest = tuple(node for node in away if node not in nodes)
    return (*rest, *nodes)[-AWAY_MAX_COUNT:]


def without(away: tuple[str, ...], nodes: Collection[str]) -> tuple[str, ...]:
    """Return the nodes to stay off without these: they stay after all, or have come back."""
    return tuple(node for node in away if node not in nodes)
