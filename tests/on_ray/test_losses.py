"""Nodes added, drained and killed under runs that train on a Ray cluster; actors and the supervisor killed."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from support.commands import Commands
from support.processes import gone, name_of
from support.rayed import ON_RAY, Rank, RayCluster, RayRun, on_cluster, patiently
from support.victims import kill_supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = ON_RAY


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster() as made:
        yield made


@pytest.fixture(scope="module")
def service(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    cluster.add()
    with on_cluster(tmp_path_factory.mktemp("service"), cluster) as runfold:
        yield runfold


def test_the_supervisor_is_killed_and_training_goes_on(cluster: RayCluster, service: Commands) -> None:
    run = RayRun(service, "orphaned")
    ranks = run.ranks(1)
    kill_supervisor(service)
    assert all(process.is_running() for rank in ranks for process in rank.family)
    status = run.ends()
    assert (status["state"], status["attempt"]) == ("finished", 1)
    cluster.leaves_nothing()


def test_an_actor_is_killed_and_its_run_goes_on_in_another(cluster: RayCluster, service: Commands) -> None:
    run = RayRun(service, "bereft", failure__max_failures=1)
    family = [process for rank in run.ranks(1) for process in rank.family]
    os.kill(cluster.actor_process(f"runfold-runfold-{run.run}-1-"), signal.SIGKILL)
    again = run.ranks(2)
    assert gone(family) == []
    status = run.ends()
    assert (status["state"], status["attempt"]) == ("finished", 2), again
    assert "its actor is gone" in run.story()
    cluster.leaves_nothing()


def test_a_node_is_drained_and_its_run_moves_in_time(cluster: RayCluster, service: Commands) -> None:
    run = RayRun(service, "moves")
    drained = cluster.called(run.ranks(1)[0].node)
    cluster.add()
    cluster.drain(drained, within_s=4.0)
    again = run.ranks(2)
    assert cluster.called(again[0].node) is not drained
    status = run.ends()
    budgets = status["budgets"]
    assert isinstance(budgets, dict)
    assert (status["state"], budgets["preemption"]["spent"], budgets["worker"]["spent"]) == ("finished", 1, 0)
    assert "will be taken back in" in run.story()
    cluster.kill(drained)
    cluster.leaves_nothing()


def test_a_node_is_killed_and_its_run_waits_for_another(cluster: RayCluster, service: Commands) -> None:
    run = RayRun(service, "stranded", failure__max_failures=1)
    ranks = run.ranks(1)
    family = [process for rank in ranks for process in rank.family]
    cluster.kill(cluster.called(ranks[0].node))
    assert gone(family) == []
    patiently(lambda: run.status["attempt"] == 2, lambda: run.status)
    cluster.add()
    run.ranks(2)
    status = run.ends()
    assert (status["state"], status["attempt"]) == ("finished", 2)
    cluster.leaves_nothing()


def runner_of(rank: Rank) -> psutil.Process:
    """The runner of a rank: what it forks has its name too, until it takes one of its own."""
    above = rank.family[0].parents()
    return next(one for one in reversed(above) if name_of(one) == "runfold-runner")


def actors_of(cluster: RayCluster, run: RayRun) -> set[str]:
    """The actors of a run, by name: each has a runner, and a name of its own for ever."""
    return {name for name in cluster.actors() if f"-{run.run}-" in name}


def test_a_group_loses_a_node_and_the_others_keep_their_actors_and_runners(
    cluster: RayCluster, service: Commands
) -> None:
    while len(cluster.nodes) < 3:
        cluster.add()
    run = RayRun(
        service,
        "keeps",
        workers=3,
        failure__max_failures=3,
        scaling__placement_strategy="STRICT_SPREAD",
        scaling__resources_per_worker__CPU=2,
    )
    before = run.ranks(1, count=3)
    families = [process for rank in before for process in rank.family]
    groups, actors, runners = cluster.groups(), actors_of(cluster, run), [runner_of(rank) for rank in before]
    cluster.kill(cluster.called(before[1].node))
    patiently(lambda: run.status["attempt"] == 2, lambda: run.status)
    assert gone(families[::2]) == [], "no rank lives on: they stand and fall together"
    patiently(lambda: "another place instead of that on" in str(run.status["waiting"]), run.story)
    kill_supervisor(service)
    cluster.add()
    again = run.ranks(2, count=3)
    assert [again[0].node, again[2].node] == [before[0].node, before[2].node]
    assert again[1].node not in {rank.node for rank in before}
    assert [runner_of(again[0]), runner_of(again[2])] == [runners[0], runners[2]]
    assert len(actors_of(cluster, run) & actors) == 2
    assert cluster.groups() == groups, "Ray has put the lost bundle elsewhere: nothing was asked for beside it"
    os.kill(runners[0].pid, signal.SIGKILL)
    third = run.ranks(3, count=3)
    assert [rank.node for rank in third] == [rank.node for rank in again], "on bundles that were there, on each node"
    assert runner_of(third[2]) == runners[2]
    assert "lost its place, and another is looked for" in run.story()
    assert cluster.groups() == groups
    status = run.ends()
    assert (status["state"], status["attempt"]) == ("finished", 3)
    cluster.leaves_nothing()


def test_a_place_that_is_lost_alone_is_replaced(cluster: RayCluster, service: Commands) -> None:
    """Replica groups of one rank: where Ray puts the lost bundle, the lost group begins again; the other trains on."""
    cluster.add()
    run = RayRun(
        service,
        "replicas",
        function="alone",
        failure__max_failures=1,
        scaling__replica_group_size=1,
        scaling__placement_strategy="STRICT_SPREAD",
        scaling__resources_per_worker__CPU=2,
    )
    stays, goes = run.ranks(1)
    groups = cluster.groups()
    cluster.kill(cluster.called(goes.node))
    cluster.add()
    patiently(lambda: run.ranks(1)[1].node not in (goes.node, stays.node), run.story)
    assert all(process.is_running() for process in stays.family)
    assert run.ranks(1)[0].pid == stays.pid
    assert cluster.groups() == groups
    kill_supervisor(service)
    status = run.ends()
    assert (status["state"], status["attempt"]) == ("finished", 1)
    cluster.leaves_nothing()


def test_an_elastic_run_grows_with_its_cluster(cluster: RayCluster, service: Commands) -> None:
    cpus = len(cluster.nodes)
    run = RayRun(
        service,
        "grows",
        workers=0,
        scaling__num_workers=f"[1,{cpus + 1}]",
        scaling__resources_per_worker__CPU=2,
        scaling__elastic_resize_monitor_interval_s=0,
        timeouts__resize_wait_s=1,
    )
    run.ranks(run.trains_with(cpus), count=cpus)
    cluster.add()
    run.ranks(run.trains_with(cpus + 1), count=cpus + 1)
    assert run.ends()["state"] == "finished"
    cluster.leaves_nothing()
