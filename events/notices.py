"""Preemption notices: several are one, with all their nodes and the earliest deadline."""

from __future__ import annotations

from msgspec.structs import replace

from runfold.events.base import Cause
from runfold.events.limits import PREEMPTION_WITHIN_S
from runfold.events.marks import Notice


def noticed(
    held: Notice | None, nodes: tuple[str, ...], within_s: float | None, *, t: float, cause: Cause, reason: str
) -> Notice:
    """Return the notice in force after another one came at `t`."""
    within_s = PREEMPTION_WITHIN_S if within_s is None else max(within_s, 0.0)
    new = Notice(nodes=tuple(sorted(set(nodes))), deadline_t=t + within_s, noticed_t=t, cause=cause, reason=reason)
    if held is None:
        return new
    first = min(held, new, key=lambda notice: (notice.deadline_t, notice.noticed_t, notice.reason))
    return replace(
        first,
        nodes=tuple(sorted({*held.nodes, *new.nodes})),
        noticed_t=min(held.noticed_t, new.noticed_t),
    )


def cancelled(held: Notice | None, nodes: tuple[str, ...]) -> Notice | None:
    """Return what is left of a notice when these nodes stay after all."""
    if held is None:
        return None
    left = tuple(node for node in held.nodes if node not in nodes)
    return replace(held, nodes=left) if left else None
