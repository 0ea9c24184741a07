"""Runs on a Ray cluster of two nodes: placed, trained, restarted in place, and nothing left of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from support.commands import Commands, Up
from support.processes import gone
from support.rayed import ON_RAY, RayCluster, RayRun, on_cluster, passwords, patiently

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = ON_RAY
TOKEN = "t0ps3cret"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster() as made:
        made.add(labels={"zone": "a"}, num_gpus=2, resources={"accelerator_type:T4": 1})
        made.add(labels={"zone": "b"})
        yield made


@pytest.fixture(scope="module")
def service(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with on_cluster(tmp_path_factory.mktemp("service"), cluster, TOKEN=TOKEN) as runfold:
        yield runfold


def test_ranks_stand_on_two_nodes_and_restart_in_place(cluster: RayCluster, service: Commands) -> None:
    run = RayRun(
        service,
        "two",
        scaling__placement_strategy="STRICT_SPREAD",
        failure__max_failures=1,
        config__fails_before=2,
    )
    first = run.ranks(1)
    actors = cluster.actors()
    again = run.ranks(2)
    assert cluster.actors() == actors
    assert len({rank.node for rank in again}) == 2
    assert [rank.node for rank in again] == [rank.node for rank in first]
    assert {rank.pid for rank in again}.isdisjoint({rank.pid for rank in first})
    status = run.ends()
    assert (status["state"], status["attempt"]) == ("finished", 2)
    cluster.leaves_nothing()


def test_ranks_have_what_the_job_gives_them_and_no_credentials(cluster: RayCluster, service: Commands) -> None:
    """Half a CPU each on one node of a kind and a place; variables of the job, secret ones and prepared ones."""
    run = RayRun(
        service,
        "given",
        scaling__placement_strategy="STRICT_PACK",
        scaling__resources_per_worker__CPU=0.5,
        scaling__resources_per_worker__GPU=1,
        scaling__use_gpu="true",
        scaling__accelerator_type="T4",
        scaling__label_selector__zone="a",
        env__GREETING="hello",
        secret_env='["TOKEN"]',
        runtime_env__env_vars__PREPARED="yes",
    )
    ranks = run.ranks(1)
    assert len({rank.node for rank in ranks}) == 1
    secrets = passwords(service)
    for process in cluster.family():
        try:
            said = [*process.cmdline(), *process.environ().values()]
        except psutil.NoSuchProcess:
            continue
        assert [secret for secret in secrets for one in said if secret in one] == []
    status = run.ends()
    assert status["return_value"] == {
        "attempt": 1,
        "environment": {"GREETING": "hello", "PREPARED": "yes", "CUDA_VISIBLE_DEVICES": "0"},
        "token": len(TOKEN),
    }
    exported = service.ok("export", run.run, "--format", "jsonl").out
    assert [one for one in (*secrets, TOKEN) if one in exported or one in session_logs(cluster)] == []
    cluster.leaves_nothing()


def test_what_can_never_be_is_told_from_what_has_to_wait(cluster: RayCluster, service: Commands) -> None:
    never = RayRun(service, "never", workers=3, scaling__resources_per_worker__CPU=2)
    status = never.reaches("errored")
    assert "3 ranks with 2 CPU each" in str(status["error"])
    nowhere = RayRun(service, "nowhere", scaling__label_selector__zone="c")
    assert "zone=c" in str(nowhere.reaches("errored")["error"])
    first = RayRun(service, "first", scaling__resources_per_worker__CPU=2)
    first.ranks(1)
    second = RayRun(service, "second", workers=1)
    patiently(lambda: "waits" in second.story() or "queued" in second.story(), second.story)
    second.reaches("scheduling")
    first.ends()
    second.ranks(1, count=1)
    assert second.ends()["state"] == "finished"
    cluster.leaves_nothing()


def test_a_run_that_waits_and_one_that_trains_are_aborted(cluster: RayCluster, service: Commands) -> None:
    first = RayRun(service, "trains", scaling__resources_per_worker__CPU=2)
    first.ranks(1)
    second = RayRun(service, "waits", scaling__resources_per_worker__CPU=2)
    patiently(lambda: len(cluster.groups()) == 2, cluster.groups)
    for run in (second, first):
        service.ok("abort", run.run, "--reason", "the test says so")
        run.reaches("aborted")
    cluster.leaves_nothing()


def test_where_nobody_comes_after_the_supervisor_nothing_is_left(
    cluster: RayCluster, service: Commands, tmp_path: Path
) -> None:
    """A second service on the cluster, killed with all it has: its actors end what they began, and only that."""
    stays = RayRun(service, "stays", workers=1)
    other = Commands(tmp_path)
    up = Up(other.start("up", "-o", "json", "--pool", "ray", "--ray-address", cluster.address))
    try:
        up.wait_ready()
        goes = RayRun(other, "goes", workers=1, timeouts__adopt_within_s=1)
        (rank,) = goes.ranks(1, count=1)
        family = rank.family
    finally:
        up.end()
        other.end()
    (kept,) = stays.ranks(1, count=1)
    assert gone(family) == []
    patiently(lambda: len(cluster.groups()) == len(cluster.actors()) == 1, cluster.groups)
    assert all(process.is_running() for process in kept.family)
    assert stays.ends()["state"] == "finished"
    cluster.leaves_nothing()


def test_a_service_that_is_stopped_in_order_leaves_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    with on_cluster(tmp_path, cluster) as runfold:
        trains, waits = RayRun(runfold, "trains", scaling__resources_per_worker__CPU=2), RayRun(runfold, "waits")
        trains.ranks(1)
        patiently(lambda: len(cluster.groups()) == 2, cluster.groups)
        waits.reaches("scheduling")
    cluster.leaves_nothing()


def session_logs(cluster: RayCluster) -> str:
    """Return all that Ray and its workers have written to their logs."""
    texts: list[str] = []
    for file in cluster.logs.rglob("*"):
        with suppress(FileNotFoundError):  # put elsewhere meanwhile
            texts.append(file.read_text(errors="replace") if file.is_file() else "")
    return "".join(texts)
