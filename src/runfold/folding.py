"""The state that a history ends in, or what is wrong with the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfold.events.edges import IllegalEdge
from runfold.events.fold import fold_all
from runfold.replay.errors import CannotRead

if TYPE_CHECKING:
    from runfold.events.state import RunState
    from runfold.replay.history import History


def state_of(history: History) -> RunState:
    """Return the state after the last entry that is believed.

    Raises:
        CannotRead: there is none, or one may not follow those before it.
    """
    if not history.links:
        history.head  # noqa: B018  # says what is wrong instead
    try:
        return fold_all(history.entries)
    except IllegalEdge as error:
        raise CannotRead(f"{history.target}: {error}. `runfold audit {history.target}` tells what is wrong") from error
