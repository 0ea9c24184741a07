"""Groups that make no step: seen for what they are, restarted only where the job says so, and shown on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.events.facts import TaskEnded
from runfold.events.transitions import FailureDecided
from runfold.replay.source import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runfold.events.entry import Entry
    from runfold.events.stacks import RankSeen
    from support.commands import Commands

LONG_S = 10
"""Longer than the machine keeps a rank from its work, and shorter than the pause."""

HANGS = """
import itertools, os, pathlib, signal, time
import runfold
def sleep(): time.sleep(600)
def spin(): sum(itertools.repeat(0))
def stop(): os.kill(os.getpid(), signal.SIGSTOP)
def train(config):
    context = runfold.get_context()
    runfold.report({"step": 0})
    if context.get_attempt() == 1 and context.get_world_rank() == 1:
        globals()[config["way"]]()
    runfold.barrier()
    return context.get_attempt()
def pauses():
    runfold.report({"step": 0})
    with runfold.paused_progress():
        time.sleep(25)
    runfold.report({"step": 1})
def waits():
    runfold.report({"step": 0})
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    runfold.barrier()
"""


def entries(runfold: Commands, run: str) -> Iterator[Entry]:
    """The entries of a run that is over."""
    return iter(load(run, data_dir=runfold.data).entries)


def of_ranks(status: dict[str, object], what: str) -> list[object]:
    """What a status says of each rank."""
    ranks = status["ranks"]
    assert isinstance(ranks, list)
    return [rank[what] for rank in ranks]


@pytest.mark.parametrize(("way", "doing"), [("sleep", "idle"), ("spin", "native"), ("stop", "stopped")])
def test_a_hang_is_told_for_what_it_is_and_paid_by_its_own_budget(runfold: Commands, way: str, doing: str) -> None:
    runfold.write("jobs.py", HANGS)
    settings = (f"timeouts.progress_timeout_s={LONG_S}", f"config.way={way}")
    options = [word for setting in settings for word in ("--set", setting)]
    status = runfold.ok("run", "jobs.py:train", "--workers", "2", *options, "-o", "json").document
    assert (status["state"], status["attempt"], status["return_value"]) == ("finished", 2, 2)
    budgets = status["budgets"]
    assert isinstance(budgets, dict)
    assert {name: one["spent"] for name, one in budgets.items()} == {
        "worker": 0,
        "startup": 0,
        "preemption": 0,
        "hang": 1,
    }
    seen: dict[int, RankSeen] = {}
    for entry in entries(runfold, str(status["run"])):
        seen |= {one.rank: one for item in entry.inputs if isinstance(item, TaskEnded) for one in item.seen}
        decided = [said for said in entry.transitions if isinstance(said, FailureDecided)]
        if decided:
            break
    else:
        raise AssertionError("nothing was decided")
    assert (decided[0].failure.kind, decided[0].failure.rank) == ("hang", 1)
    assert (seen[0].doing, seen[0].waits_in, seen[1].doing) == ("collective", "barrier #1", doing)
    assert seen[0].stacks is not None
    assert (seen[1].stacks is None) == (way == "stop")
    assert decided[0].failure.error.blob == seen[1].stacks


def test_a_rank_that_pauses_is_not_missed(runfold: Commands) -> None:
    runfold.write("jobs.py", HANGS)
    options = ("--set", f"timeouts.progress_timeout_s={LONG_S}", "--set", "failure.max_hangs=0", "-o", "json")
    assert runfold.ok("run", "jobs.py:pauses", *options).document["state"] == "finished"


def test_ranks_are_looked_at_on_request(runfold: Commands) -> None:
    runfold.write("jobs.py", HANGS)
    with runfold.service("--slots", "2"):
        run = runfold.submit("jobs.py:waits", "--workers", "2")
        runfold.until(run, lambda status: of_ranks(status, "index") == [0, 0])
        shown = runfold.ok("stacks", run).out
        assert "rank 0 waits in Python code, at jobs.py:" in shown
        assert "rank 1 waits in Python code, at jobs.py:" in shown
        assert "in waits" in shown
        assert "rank 0" not in runfold.ok("stacks", run, "--rank", "1").out
        missing = runfold("stacks", run, "--rank", "99")
        assert (missing.code, missing.out) == (2, "")
        assert "2 ranks, numbered from 0" in missing.err
        runfold.until(run, lambda status: of_ranks(status, "doing") == ["idle", "idle"])
        (runfold.folder / "go").touch()
        assert runfold.ended(run)["state"] == "finished"
        assert runfold("stacks", run).code == 1
    assert runfold("stacks", "nobody").code == 4
