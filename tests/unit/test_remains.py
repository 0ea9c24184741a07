"""What is left of a log that was given back tells that its run is over; nothing else does."""

from __future__ import annotations

import pytest

from runfold.events.base import Cause
from runfold.events.entry import Entry, Head, encode_entry, hash_entry
from runfold.events.remains import last_of
from runfold.events.transitions import AnyTransition, EndName, StateChanged, StateName
from runfold.folding import state_of
from runfold.replay.errors import CannotRead
from runfold.replay.history import History, Raw, Where, link_up


def entry(n: int, *transitions: AnyTransition, run: str = "r") -> Entry:
    return Entry(
        v=1,
        run=run,
        n=n,
        t=1.0,
        at="2026-01-01T00:00:00.000000Z",
        by="ctl",
        epoch=1,
        cursor=None,
        inputs=(),
        transitions=transitions,
        prev="00" * 32,
    )


def changed(before: StateName, after: StateName) -> StateChanged:
    return StateChanged(cause=Cause(input=0), reason="why", from_state=before, to_state=after)


@pytest.mark.parametrize("end", ["finished", "errored", "aborted"])
def test_the_entry_by_which_a_run_ended_is_what_stays(end: EndName) -> None:
    data = encode_entry(entry(9, changed("shutting_down", end)))
    found = last_of("r", data)
    assert found is not None
    assert found.head == Head(n=9, hash=hash_entry(data))
    assert last_of("other", data) is None


@pytest.mark.parametrize(
    "one",
    [
        entry(0, changed("initializing", "aborted")),
        entry(9, changed("scheduling", "running")),
        entry(9),
    ],
)
def test_another_entry_tells_of_no_end(one: Entry) -> None:
    assert last_of("r", encode_entry(one)) is None
    assert last_of("r", b"no entry") is None


def test_a_history_that_cannot_be_folded_says_so() -> None:
    data = encode_entry(entry(9, changed("shutting_down", "finished")))
    linked = link_up([Raw(data=data, where=Where(file="a log"))], "r")
    history = History(target="r", kind="stream", run="r", links=linked.links, damages=linked.damages)
    with pytest.raises(CannotRead, match="entry 0 is missing: entry 9 follows"):
        state_of(history)
