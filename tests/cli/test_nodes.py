"""Several nodes on one machine: a runner each with its own slots, one group across them, and the loss of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.events.transitions import FailureDecided, FirstCauseRevised
from support.commands import gone
from support.victims import Held

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.commands import Commands as Runfold

WHERE = """
import runfold
def train():
    context = runfold.get_context()
    return runfold.all_gather([context.get_world_rank(), context.get_node_rank(), context.get_local_rank()])
"""


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runfold]:
    """Commands beside a service that shows two nodes of two slots."""
    from support.commands import Commands

    folder: Path = tmp_path_factory.mktemp("nodes")
    commands = Commands(folder)
    with commands.service("--nodes", "2", "--slots", "2"):
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


def test_a_group_across_nodes_loses_one_of_them_and_is_placed_anew(two_nodes: Runfold) -> None:
    held = Held(two_nodes, "lost", "train", workers=4, settings={"failure.node_exclude_after": 5})
    held.reaches("running")
    assert nodes(held.status) == ["local-0", "local-0", "local-1", "local-1"]
    family = held.family()
    victim = next(one for one in held.runners() if held.rank(3) in one.children(recursive=True))
    victim.kill()
    assert gone(family) == []
    status = held.ends()
    assert (status["state"], status["return_value"], held.spent) == ("finished", 2, {"worker": 1})
    told = two_nodes.ok("replay", held.run).out
    assert "local-1 failed first: RunnerLost" in told


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
    assert "1 run ahead" not in str(large.status["waiting"])
    urgent.lets("train")
    assert large.ends()["state"] == "finished"


def test_a_lost_node_is_the_first_cause_whatever_its_peers_tell_first(two_nodes: Runfold) -> None:
    held = Held(two_nodes, "peers", "far", workers=4)
    held.reaches("running")
    held.rank(3)
    held.waits_until(lambda: ranks(held.status)[0]["index"] != -1)
    victim = next(one for one in held.runners() if held.rank(3) in one.children(recursive=True))
    victim.kill()
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
