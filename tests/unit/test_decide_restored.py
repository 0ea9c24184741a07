"""A log restored into another generation: said once, in whatever state the run is, above every epoch shown before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from runfold.controller.compose import draft
from runfold.controller.decide import decide
from runfold.events.base import Cause, Moment
from runfold.events.conclusions import ControllerStarted, Decider, LogCopied
from runfold.events.edges import IllegalEdge
from runfold.events.entry import Head
from runfold.events.evolve import evolve
from runfold.events.fold import fold
from runfold.events.observe import observe
from runfold.events.state import Restored, RunState
from runfold.events.transitions import ControllerChanged, LogRestored
from support.runs import Run

COPIED = LogCopied(generation=2, source="file:///archive", epoch=7, by="restore")
STARTED = ControllerStarted(controller="ctl-b", decider=Decider(version="1"))


def finished() -> RunState:
    run = Run(1).running().finishing()
    return run.says(run.released()).state


@pytest.mark.parametrize("ended", [False, True])
def test_a_copied_log_is_restored_and_the_next_controller_begins_above_it(ended: bool) -> None:
    state = finished() if ended else Run(2).running().state
    written = draft(state, Head(n=state.n, hash="0" * 64), (COPIED,), t=state.t, at="", by="restore", cursor=None)
    (restored,) = written.entry.transitions
    assert isinstance(restored, LogRestored)
    assert (restored.generation, restored.epoch, written.entry.epoch) == (2, 7, 7)
    assert restored.cause == Cause(input=0)
    assert restored.reason == "the log was damaged: restored from file:///archive as generation 2"
    after = fold(state, written.entry)
    assert after.restored == Restored(generation=2, epoch=7, n=state.n + 1)
    assert (after.epoch, after.controller, after.restoring) == (7, "restore", None)
    assert after.phase == state.phase
    assert decide(after, (), after.t).transitions == ()
    changed = decide(after, (STARTED,), after.t).transitions
    assert [item.epoch for item in changed if isinstance(item, ControllerChanged)] == ([] if ended else [8])


def test_seen_one_by_one_it_is_the_same() -> None:
    for state in (Run(2).running().state, finished()):
        seen = observe(state, COPIED, Moment(n=state.n + 1, t=state.t))
        assert seen.restoring is not None
        assert seen.restoring.cause == Cause(entry=state.n + 1, input=0)
        other = observe(state, STARTED, Moment(n=state.n + 1, t=state.t))
        assert other.restoring is None


def test_a_restored_log_goes_up_in_epochs() -> None:
    state = replace(Run(2).running().state, epoch=7)
    restored = LogRestored(generation=2, source="s", epoch=7, by="restore", cause=Cause(input=0), reason="r")
    with pytest.raises(IllegalEdge, match="restored in epoch 7 after epoch 7"):
        evolve(state, restored, Moment(n=state.n, t=state.t))
    old = replace(state, epoch=1)
    of_old = LogRestored(generation=2, source="s", cause=Cause(input=0), reason="r")
    assert evolve(old, of_old, Moment(n=9, t=0.0)) == old
