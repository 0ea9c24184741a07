"""What `decide` returns, and what it raises when it cannot come to an end."""

from __future__ import annotations

from runfold.events.base import Value
from runfold.events.transitions import AnyTransition


class Decision(Value, frozen=True):
    """The transitions of one entry, in order, and when to look again if nothing comes before (the run's clock)."""

    transitions: tuple[AnyTransition, ...]
    wake_at: float | None = None


class Unsettled(RuntimeError):
    """The rules go round in a circle: a bug of the controller or of a policy. The run keeps its state."""
