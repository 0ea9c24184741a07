"""Several nodes on one machine: a runner each with its own slots, one group across them, and the loss of one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from runfold.events.transitions import FailureDecided, FirstCauseRevised
from support.commands import Commands as Runfold
from support.processes import gone, under
from support.victims import Held, kill_supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psutil

WHERE = """
import runfold
def train():
    context = runfold.get_context()
    return runfold.all_gather([context.get_world_rank(), context.get_node_rank(), context.get_local_rank()])
"""


@contextmanager
def of_two_slots(folder: Path, nodes_count: int) -> Iterator[Runfold]:
    """Commands beside a service that shows so many nodes of two slots."""
    commands = Runfold(folder)
    try:
        with commands.service("--nodes", str(nodes_count), "--slots", "2"):
            yield commands
    finally:
        commands.end()


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runfold]:
    """Commands beside a service that shows two nodes of two slots."""
    with of_two_slots(tmp_path_factory.mktemp("nodes"), 2) as commands:
        yield commands


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runfold]:
    """Commands beside a service that shows three nodes of two slots."""
    with of_two_slots(tmp_path_factory.mktemp("three"), 3) as commands:
        yield commands


def ranks(status: dict[str, object]) -> list[dict[str, object]]:
    """The ranks of a status."""
    found = status["ranks"]
    assert isinstance(found, list)
    return found


def nodes(status: dict[str, object]) -> list[object]:
    """The node of each rank."""
    return [rank["node"] for rank in ranks(status)]


def test_a_one_shot_run_on_two_nodes(runfold: Runfold) -> None:
    runfold.write("jobs.py", WHERE)
    status = runfold.ok("run", "jobs.py:train", "--workers", "3", "--nodes", "2", "-o", "json").document
    assert status["return_value"] == [[0, 0, 0], [1, 0, 1], [2, 1, 0]]
    assert nodes(status) == ["local-0", "local-0", "local-1"]


def test_how_many_nodes_there_are_is_said_once(two_nodes: Runfold, runfold: Runfold) -> None:
    two_nodes.write("jobs.py", WHERE)
    refused = two_nodes("run", "jobs.py:train", "--nodes", "2")
    assert (refused.code, "has nodes of its own" in refused.err) == (2, True)
    assert runfold("run", "jobs.py:train", "--nodes", "0").code == 2
    assert runfold("up", "--nodes", "65").code == 2


def runner_of(held: Held, rank: int) -> psutil.Process:
    """The runner of a rank."""
    process = held.rank(rank)
    return next(one for one in held.runners() if process in under(one))


def in_attempt(held: Held, attempt: int) -> None:
    """Wait until an attempt is at work."""
    held.runfold.until(held.run, lambda status: (status["attempt"], status["state"]) == (attempt, "running"))


def test_a_group_loses_a_runner_and_its_other_places_are_kept_with_their_runners(three_nodes: Runfold) -> None:
    held = Held(three_nodes, "lost", "train", workers=6, settings={"failure.node_exclude_after": 5})
    held.reaches("running")
    where = ["local-0", "local-0", "local-1", "local-1", "local-2", "local-2"]
    assert nodes(held.status) == where
    before = [held.rank(number) for number in range(6)]
    first, lost, last = (runner_of(held, number) for number in (0, 2, 4))
    lost.kill()
    assert gone([lost, *before]) == [], "no rank lives on: they stand and fall together"
    in_attempt(held, 2)
    assert nodes(held.status) == where, "a rank keeps its node"
    assert (runner_of(held, 0), runner_of(held, 5)) == (first, last)
    status = held.ends()
    assert (status["state"], status["return_value"], held.spent) == ("finished", 2, {"worker": 1})
    told = three_nodes.ok("replay", held.run).out
    assert "local-1 failed first: RunnerLost" in told
    assert "restarting on the same places; local-1 lost its place, and another is looked for" in told
    assert three_nodes.ok("audit", held.run).code == three_nodes.ok("verify", held.run).code == 0


def test_a_place_that_is_not_to_be_had_is_waited_for_with_the_others_kept(three_nodes: Runfold) -> None:
    """Its places on a node are taken away, and the third node is another's: it waits, also for another supervisor."""
    held = Held(three_nodes, "waits", "train", workers=4)
    held.reaches("running")
    other = Held(three_nodes, "other", "train", workers=2)
    other.reaches("running")
    kept, leaves = runner_of(held, 0), runner_of(held, 2)
    ranks_before = [held.rank(number) for number in range(4)]
    three_nodes.ok("capacity", "set", "0", "--node", "local-1")
    words = "another place instead of that on local-1: 2 slots needed, 0 free"
    held.waits_until(lambda: words in str(held.status["waiting"]))
    assert (held.status["state"], held.status["attempt"]) == ("scheduling", 2)
    assert gone([leaves, *ranks_before]) == []
    assert held.runners() == [kept]
    kill_supervisor(three_nodes)
    other.lets("train")
    in_attempt(held, 2)
    assert nodes(held.status) == ["local-0", "local-0", "local-2", "local-2"]
    assert runner_of(held, 0) == kept
    three_nodes.ok("capacity", "set", "2", "--node", "local-1")
    status = held.ends()
    assert (status["state"], status["return_value"], held.spent) == ("finished", 2, {"preemption": 1})
    assert three_nodes.ok("audit", held.run).code == three_nodes.ok("verify", held.run).code == 0


def test_a_kept_place_that_will_be_taken_back_is_given_up_too_while_another_is_looked_for(three_nodes: Runfold) -> None:
    held = Held(three_nodes, "noticed", "train", workers=5)
    held.reaches("running")
    three_nodes.ok("capacity", "set", "0", "--node", "local-1")
    held.waits_until(lambda: "another place instead of that on local-1:" in str(held.status["waiting"]))
    three_nodes.ok("preempt", held.run, "--node", "local-0", "--within", "1")
    held.waits_until(lambda: "another place instead of that on local-0, local-1:" in str(held.status["waiting"]))
    assert (held.status["state"], held.status["attempt"], held.spent) == ("scheduling", 3, {"preemption": 1})
    three_nodes.ok("capacity", "set", "2", "--node", "local-1")
    held.waits_until(lambda: "2 slots needed, 0 free" in str(held.status["waiting"]))
    assert held.status["state"] == "scheduling", "no rank is begun on a node that was taken back"
    three_nodes.ok("preempt", held.run, "--node", "local-0", "--cancel")
    in_attempt(held, 3)
    status = held.ends()
    assert (status["state"], status["return_value"], held.spent) == ("finished", 3, {"preemption": 1})
    assert three_nodes.ok("audit", held.run).code == three_nodes.ok("verify", held.run).code == 0


def test_who_waits_for_a_place_is_aborted_and_leaves_nothing(three_nodes: Runfold) -> None:
    held = Held(three_nodes, "aborted", "train", workers=6)
    held.reaches("running")
    leaves = runner_of(held, 2)
    three_nodes.ok("capacity", "set", "0", "--node", "local-1")
    held.waits_until(lambda: "another place" in str(held.status["waiting"]))
    assert gone([leaves]) == []
    family = held.family()
    three_nodes.ok("abort", held.run, "--reason", "enough")
    assert three_nodes.ended(held.run)["state"] == "aborted"
    assert gone(family) == []
    three_nodes.ok("capacity", "set", "2", "--node", "local-1")
    after = Held(three_nodes, "after", workers=6)
    assert after.ends()["state"] == "finished", "every place was given back"


def test_groups_are_placed_whole_or_not_at_all_and_by_priority(two_nodes: Runfold) -> None:
    first = Held(two_nodes, "first", "train", workers=3)
    first.reaches("running")
    large = Held(two_nodes, "large", workers=4)
    urgent = Held(two_nodes, "urgent", "train", workers=2, settings={"priority": 5})
    urgent.waits_until(lambda: "1 free" in str(urgent.status["waiting"]))
    assert large.status["state"] == "scheduling"
    first.lets("train")
    urgent.reaches("running")
    assert large.status["state"] == "scheduling"
    large.waits_until(lambda: "1 run ahead" not in str(large.status["waiting"]))
    urgent.lets("train")
    assert large.ends()["state"] == "finished"


def test_a_lost_node_is_the_first_cause_whatever_its_peers_tell_first(two_nodes: Runfold) -> None:
    held = Held(two_nodes, "peers", "far", workers=4)
    held.reaches("running")
    held.rank(3)
    held.waits_until(lambda: ranks(held.status)[0]["index"] != -1)
    runner_of(held, 3).kill()
    held.lets("far")
    assert held.ends()["state"] == "finished"
    decided = [
        said.failure
        for entry in held.entries()
        for said in entry.transitions
        if isinstance(said, FailureDecided | FirstCauseRevised) and said.failure.attempt == 1
    ]
    assert (decided[-1].kind, decided[-1].node) == ("runner", "local-1")
    assert two_nodes.ok("audit", held.run).code == two_nodes.ok("verify", held.run).code == 0
