"""The fold: a run's state is what its entries, one after another, make of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from runfold.events.base import Moment
from runfold.events.edges import IllegalEdge
from runfold.events.evolve import evolve
from runfold.events.observe import observe_all
from runfold.events.state import RunState, Unborn
from runfold.events.transitions import RunAccepted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runfold.events.entry import Entry
    from runfold.events.state import AnyState


def fold(state: AnyState | None, entry: Entry) -> RunState:
    """Return the state after an entry: first everything it saw, then everything it decided.

    Entry 0 begins with `RunAccepted`, without which there is no state that could see anything.
    Raises `IllegalEdge` for an entry that cannot follow.
    """
    transitions = entry.transitions
    if not isinstance(state, RunState):
        if not transitions or not isinstance(transitions[0], RunAccepted):
            raise IllegalEdge(f"entry {entry.n} of {entry.run} does not begin with RunAccepted: there is no run yet")
        first = transitions[0]
        unborn = Unborn(job=first.job, digest=first.digest, jobs_sequence=first.jobs_sequence)
        born = evolve(unborn, first, Moment(n=entry.n, t=entry.t))
        born = replace(born, accepted_at=entry.at)
        state = observe_all(born, entry.inputs, n=entry.n, t=entry.t, cursor=entry.cursor)
        return _decided(state, entry, 1)
    if entry.n != state.n + 1:
        raise IllegalEdge(f"entry {entry.n} of {entry.run} after entry {state.n}: entries have no holes")
    t = max(state.t, entry.t)
    seen = observe_all(state, entry.inputs, n=entry.n, t=t, cursor=entry.cursor)
    return _decided(seen, entry, 0) if transitions else seen


def _decided(state: RunState, entry: Entry, first: int) -> RunState:
    n, t, transitions = entry.n, state.t, entry.transitions
    for k in range(first, len(transitions)):
        state = evolve(state, transitions[k], Moment(n=n, t=t, k=k))
    return state


def fold_all(entries: Iterable[Entry]) -> RunState:
    """Return the state after these entries, entry 0 first; raise `IllegalEdge` for none or for a wrong one."""
    state: RunState | None = None
    for entry in entries:
        state = fold(state, entry)
    if state is None:
        raise IllegalEdge("no entries: a run without entry 0 does not exist")
    return state
