"""What a long run is told by before its entries are read: the story beside its archive, else its status."""

from __future__ import annotations

import asyncio

from runfold.events.status import Status
from runfold.locate import find
from runfold.replay.story import Story
from runfold.sources import glance
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.scripts import TRAINING
from support.sources import ROOT
from support.waiting import until_seen

LONG = 10**6


def looked(user: Commands, target: str, entries_min: int) -> Story | Status | None:
    return asyncio.run(glance(find(str(user.data)), target, entries_min))


def test_a_run_that_goes_on_is_told_by_its_status_and_one_that_ended_by_its_story(served: Commands) -> None:
    served.write("jobs.py", TRAINING)
    run = served.submit("jobs.py:wait")
    found = looked(served, run, 1)
    assert isinstance(found, Status)
    assert found.run == run
    assert looked(served, run, LONG) is None
    served.ok("abort", run, "--reason", "seen enough")
    served("watch", run)
    # The archive is closed in a moment.
    until_seen(lambda: not isinstance(looked(served, run, 1), Status), COMMAND_TIMEOUT_S)
    found = looked(served, run, 1)
    assert isinstance(found, Story)
    assert (found.run, found.state) == (run, "aborted")
    assert looked(served, run, LONG) is None


def test_what_is_no_run_has_no_glance(served: Commands) -> None:
    assert looked(served, "nope", 1) is None
    assert looked(served, str(ROOT / "tests" / "golden" / "golden-digits.jsonl"), 1) is None
