"""An entry made of inputs and what is decided on them: the one place where the shell calls `decide`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runfold.controller.decide import decide
from runfold.events.base import WIRE_VERSION
from runfold.events.entry import GENESIS, AnyInput, Entry, Head, encode_entry
from runfold.events.state import AnyState, RunState, Unborn
from runfold.events.transitions import AnyTransition, ControllerChanged, LogRestored


class NothingAccepted(ValueError):
    """What was decided first of all for a job does not make a run."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry that is not in the log yet, and its bytes."""

    entry: Entry
    data: bytes


def draft(
    state: AnyState,
    head: Head | None,
    inputs: Sequence[AnyInput],
    *,
    t: float,
    at: str,
    by: str,
    cursor: tuple[str, int] | None,
) -> Draft:
    """Decide on `inputs` and return the entry after `head` (None: entry 0)."""
    decision = decide(state, inputs, t)
    entry = Entry(
        v=WIRE_VERSION,
        run=run_of(state),
        n=0 if head is None else head.n + 1,
        t=t,
        at=at,
        by=by,
        epoch=_epoch(state, decision.transitions),
        cursor=cursor,
        inputs=tuple(inputs),
        transitions=tuple(decision.transitions),
        prev=GENESIS if head is None else head.hash,
    )
    return Draft(entry, encode_entry(entry))


def _epoch(state: AnyState, transitions: Sequence[AnyTransition]) -> int:
    """The epoch that an entry begins, or else the one it belongs to."""
    begun = [item.epoch for item in transitions if isinstance(item, ControllerChanged | LogRestored)]
    if begun:
        return begun[-1]
    if isinstance(state, Unborn):
        raise NothingAccepted("a run's first entry must name its controller")
    return state.epoch


def run_of(state: AnyState) -> str:
    """Return the id of the run, born or not."""
    if isinstance(state, RunState):
        return state.run
    if state.job.id is None:
        raise NothingAccepted("the job has no id: it must be resolved before it is decided on")
    return state.job.id
