"""Nodes that are taken back, and replica groups that are replaced: on a service that shows three nodes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import msgspec
import pytest

from runfold.events.transitions import FailureDecided, ReplicaGroupReplaced
from support.commands import Commands
from support.processes import gone, under
from support.victims import Held, placed, spent_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINING = """
import json, os, pathlib, time
import runfold
NAME = os.environ["HOLD"]

def train():
    context = runfold.get_context()
    told, step = False, 0
    while not runfold.broadcast_from_rank_zero(pathlib.Path(f"enough-{NAME}").exists()):
        info = runfold.get_preemption_info()
        if info is not None and not told:
            told = True
            found = {"nodes": info.preempted_node_to_ranks, "ranks": info.preempted_ranks, "ms": info.deadline_ms}
            pathlib.Path(f"told-{NAME}-{context.get_world_rank()}").write_text(json.dumps(found))
        if runfold.should_checkpoint(together=True):
            folder = pathlib.Path(f"saved-{NAME}-{context.get_world_rank()}-{os.getpid()}")
            folder.mkdir(exist_ok=True)
            (folder / f"state-{context.get_world_rank()}").write_text(str(step))
            runfold.report({"pid": os.getpid(), "step": step}, runfold.Checkpoint.from_directory(str(folder)))
        else:
            runfold.report({"pid": os.getpid(), "step": step})
        step += 1
        time.sleep(0.02)
    return os.getpid()
"""
AT_ONCE: dict[str, object] = {"timeouts.coalesce_s": 0, "timeouts.restart_grace_s": 0.5}
GROUPS: dict[str, object] = {**AT_ONCE, "scaling.replica_group_size": 1, "failure.max_failures": 3}


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Commands beside a service that shows three nodes of two slots."""
    commands = Commands(tmp_path_factory.mktemp("preempting"))
    try:
        with commands.service("--nodes", "3", "--slots", "2"):
            yield commands
    finally:
        commands.end()


class Training(Held):
    """A run that trains until it is told that that is enough."""

    def __init__(self, runfold: Commands, name: str, workers: int, settings: dict[str, object]) -> None:
        runfold.write("trains.py", TRAINING)
        self.runfold, self.name = runfold, name
        options = {"env.HOLD": name, **settings}
        words = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
        self.run = runfold.submit("trains.py:train", "--workers", str(workers), *words)

    @property
    def nodes(self) -> list[object]:
        """The node of each rank."""
        return [rank["node"] for rank in ranks_of(self.status)]

    @property
    def pid(self) -> object:
        """The process of rank 0."""
        metrics = msgspec.convert(self.status["metrics"], dict[str, object] | None)
        return metrics["pid"] if metrics is not None else None

    def reaches_attempt(self, number: int) -> None:
        """Wait until an attempt is at work."""
        self.runfold.until(
            self.run,
            lambda status: (status["attempt"], status["state"]) == (number, "running") and at_work(status),
        )

    def trains_on(self, spent: dict[str, int], *states: str) -> None:
        """Wait until every rank is at work, and so much is spent; its state is one of these all the time."""

        def holds(status: dict[str, object]) -> bool:
            assert status["state"] in states, status
            return spent_of(status) == spent and at_work(status)

        self.runfold.until(self.run, holds)

    def finishes(self) -> dict[str, object]:
        """Let it end."""
        (self.runfold.folder / f"enough-{self.name}").touch()
        self.reaches("finished")
        return self.runfold.ok("get", self.run, "-o", "json").document

    def told(self, rank: int) -> dict[str, object]:
        """What a rank was told of nodes that go."""
        found = (self.runfold.folder / f"told-{self.name}-{rank}").read_bytes()
        return msgspec.json.decode(found, type=dict[str, object])


def test_a_node_that_will_go_is_left_as_soon_as_the_ranks_have_saved(three_nodes: Commands) -> None:
    run = Training(three_nodes, "leaves", 3, AT_ONCE)
    run.reaches_attempt(1)
    assert run.nodes == ["local-0", "local-0", "local-1"]
    three_nodes.ok("preempt", run.run, "--node", "local-1", "--within", "600", "--reason", "spot reclaim")
    run.reaches_attempt(2)
    assert run.nodes == ["local-0", "local-0", "local-2"]
    assert run.spent == {"preemption": 1}
    told = run.told(0)
    assert (told["nodes"], told["ranks"]) == ({"local-1": [2]}, [2])
    assert isinstance(told["ms"], int)
    assert run.status["checkpoint"] is not None
    assert run.finishes()["attempt"] == 2


def test_a_notice_that_is_withdrawn_changes_nothing(three_nodes: Commands) -> None:
    run = Training(three_nodes, "stays", 6, AT_ONCE)
    run.reaches_attempt(1)
    three_nodes.ok("preempt", run.run, "--node", "local-1")
    run.reaches("preempting")
    assert "local-1 will be taken back" in str(run.status["reason"])
    three_nodes.ok("preempt", run.run, "--node", "local-1", "--cancel")
    run.reaches("running")
    assert (run.finishes()["attempt"], run.spent) == (1, {})


def test_when_every_node_is_taken_back_the_run_waits_until_one_is_there_again(three_nodes: Commands) -> None:
    run = Training(three_nodes, "waits", 2, AT_ONCE)
    run.reaches_attempt(1)
    names = [word for k in range(3) for word in ("--node", f"local-{k}")]
    three_nodes.ok("preempt", run.run, *names, "--within", "0.5")
    run.waits_until(lambda: "0 free" in str(run.status["waiting"]))
    three_nodes.ok("preempt", run.run, "--node", "local-2", "--cancel")
    run.reaches_attempt(2)
    assert run.nodes == ["local-2", "local-2"]
    run.finishes()


def test_a_lost_place_alone_is_replaced_while_the_other_groups_train_on(three_nodes: Commands) -> None:
    run = Training(three_nodes, "groups", 4, GROUPS)
    run.reaches_attempt(1)
    before, victim = run.pid, next(one for one, node in placed(three_nodes, run.run) if node == "local-1")
    family = under(victim)
    victim.kill()
    assert gone(family) == []
    run.trains_on({"worker": 1}, "running")
    assert (run.status["attempt"], run.pid) == (1, before)
    assert run.finishes()["return_value"] == before
    assert sorted((item.group, item.life) for item in replaced(run)) == [(2, 2), (3, 2)]


def test_groups_on_a_node_that_will_go_are_replaced_elsewhere_while_the_others_train_on(three_nodes: Commands) -> None:
    run = Training(three_nodes, "moves", 4, GROUPS)
    run.reaches_attempt(1)
    before = run.pid
    three_nodes.ok("preempt", run.run, "--node", "local-1", "--within", "600")
    run.trains_on({"preemption": 1}, "running", "preempting")
    assert run.nodes == ["local-0", "local-0", "local-2", "local-2"]
    assert (run.status["attempt"], run.pid) == (1, before)
    assert run.finishes()["return_value"] == before
    (decided,) = [item for entry in run.entries() for item in entry.transitions if isinstance(item, FailureDecided)]
    assert (decided.decision, decided.replicas, decided.vacated) == ("replace", (2, 3), (1,))


def test_what_cannot_be_noticed_is_refused(three_nodes: Commands) -> None:
    run = Training(three_nodes, "refuses", 1, AT_ONCE)
    run.reaches_attempt(1)
    nowhere = three_nodes("preempt", run.run, "--node", "elsewhere")
    assert (nowhere.code, "has no rank on elsewhere; it runs on local-" in nowhere.err) == (1, True)
    early = three_nodes("preempt", run.run, "--node", "local-0", "--within", "-1")
    assert (early.code, "--within: must be a finite number of seconds" in early.err) == (2, True)
    both = three_nodes("preempt", run.run, "--node", "local-0", "--within", "1", "--cancel")
    assert (both.code, "--cancel says that the nodes stay" in both.err) == (2, True)
    asked = three_nodes.ok("preempt", run.run, "--node", "local-0", "-o", "json").document
    assert asked["answer"] == "accepted"
    run.finishes()


@pytest.mark.parametrize("nodes_count", [1, 2])
def test_a_service_that_is_stopped_in_order_and_started_again_has_its_nodes_back(
    runfold: Commands, nodes_count: int
) -> None:
    shape = ("--slots", "4") if nodes_count == 1 else ("--nodes", "2", "--slots", "1")
    with runfold.service(*shape) as up:
        run = Training(runfold, "again", 2, {})
        run.reaches_attempt(1)
        said = up.stop(signal.SIGINT)
        assert "1 running run goes on when the service is started again; what is at work may save first" in said
    with runfold.service(*shape):
        run.reaches_attempt(2)
        assert run.spent == {"preemption": 1}
        assert run.told(0)["ranks"] == [0, 1]
        assert run.status["checkpoint"] is not None, "the ranks had time to save"
        assert run.finishes()["attempt"] == 2


def replaced(run: Training) -> list[ReplicaGroupReplaced]:
    """The replacements that its log tells of."""
    return [item for entry in run.entries() for item in entry.transitions if isinstance(item, ReplicaGroupReplaced)]


def ranks_of(status: dict[str, object]) -> list[dict[str, object]]:
    """The ranks of a status."""
    return msgspec.convert(status["ranks"], list[dict[str, object]])


def at_work(status: dict[str, object]) -> bool:
    """Whether every rank is in user code."""
    ranks = ranks_of(status)
    return bool(ranks) and all(rank["phase"] == "running" and rank["index"] != -1 for rank in ranks)
