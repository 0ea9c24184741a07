"""The legal edges of the state machine: one table, and what each new state must be given."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runfold.events.state import AnyPhase
    from runfold.events.transitions import StateName

EDGES: Final[Mapping[StateName, frozenset[StateName]]] = MappingProxyType(
    {
        "initializing": frozenset({"scheduling", "shutting_down"}),
        "scheduling": frozenset({"running", "rescheduling", "resizing", "shutting_down"}),
        "rescheduling": frozenset({"scheduling", "rescheduling", "shutting_down"}),
        "running": frozenset({"preempting", "restarting", "resizing", "shutting_down"}),
        "preempting": frozenset({"preempting", "running", "restarting", "shutting_down"}),
        "restarting": frozenset({"scheduling", "rescheduling", "shutting_down"}),
        "resizing": frozenset({"scheduling", "shutting_down"}),
        "shutting_down": frozenset({"shutting_down", "finished", "errored", "aborted"}),
        "finished": frozenset(),
        "errored": frozenset(),
        "aborted": frozenset(),
    }
)
"""State → the states that may follow it. From itself: more is known of the same (nodes, a shorter deadline)."""

START_OF_ATTEMPT: Final = frozenset[str](("initializing", "rescheduling", "restarting", "resizing"))
"""States in which the next attempt may begin."""

GROUP_AT_WORK: Final = frozenset[str](("scheduling", "running", "preempting"))
"""States in which a failure of the group is asked about."""


class IllegalEdge(ValueError):
    """A transition that may not follow the state it was told to follow: the log or the program is wrong."""


def state_name(phase: AnyPhase) -> StateName:
    """Return the name of a phase as it stands in logs and in the status."""
    name: StateName = phase.__struct_config__.tag  # type: ignore[assignment]  # tags are the names, by construction
    return name


def check_edge(phase: AnyPhase, to_state: StateName) -> None:
    """Raise `IllegalEdge` unless `to_state` may follow `phase`."""
    name = state_name(phase)
    if to_state not in EDGES[name]:
        legal = ", ".join(sorted(EDGES[name])) or "nothing: it is terminal"
        raise IllegalEdge(f"{name} → {to_state} is no edge; legal after {name}: {legal}")
