"""TPU slices on a Ray cluster: nodes that look like hosts of slices, for whatever Ray can tell of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from support.commands import Commands, Up
from support.rayed import ON_RAY, PATIENCE_S, RayCluster, RayRun, on_cluster, patiently
from support.victims import kill_supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = ON_RAY

HEAD = "TPU-v4-16-head"
TPUS = {
    "scaling__use_tpu": "true",
    "scaling__topology": "2x2x2",
    "scaling__accelerator_type": "v4",
    "scaling__resources_per_worker": '{"CPU": 0.1, "TPU": 4}',
}


class Slices:
    """The slices of a cluster, of two hosts each: the hosts by their numbers, by the slice's name."""

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = cluster
        self.hosts: dict[str, dict[int, object]] = {}

    def add(self, name: str, *, hosts: tuple[int, ...] = (0, 1)) -> None:
        """Add a slice, its hosts in this order."""
        for number in hosts:
            labels = {
                "ray.io/tpu-slice-name": name,
                "ray.io/tpu-worker-id": str(number),
                "ray.io/tpu-pod-type": "v4-16",
                "ray.io/tpu-topology": "2x2x2",
            }
            head = {HEAD: 1} if number == 0 else {}
            node = self.cluster.add(cpus=1, resources={"TPU": 4, **head}, labels=labels)
            self.hosts.setdefault(name, {})[number] = node

    def of(self, run: RayRun, attempt: int, count: int) -> list[str]:
        """Return the slice and the number of the host of each rank, once all are at work."""
        called = {
            self.cluster.number(node)[:8]: f"{name}{number}"
            for name, hosts in self.hosts.items()
            for number, node in hosts.items()
        }
        return [called[rank.node.rpartition("-")[2]] for rank in run.ranks(attempt, count)]

    @contextmanager
    def in_use(self, name: str) -> Iterator[None]:
        """Have somebody else use the head of a slice for as long as the block lasts."""
        util = self.cluster.util
        where = [{"ray.io/tpu-slice-name": name}]
        group = util.placement_group([{HEAD: 1}], name="else", bundle_label_selector=where)
        assert group.wait(PATIENCE_S)
        try:
            yield
        finally:
            util.remove_placement_group(group)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster() as made:
        yield made


@pytest.fixture(scope="module")
def slices(cluster: RayCluster) -> Slices:
    made = Slices(cluster)
    made.add("b", hosts=(1, 0))
    made.add("a")
    return made


@pytest.fixture(scope="module")
def service(cluster: RayCluster, slices: Slices, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    assert len(slices.hosts) == 2
    with on_cluster(tmp_path_factory.mktemp("service"), cluster) as runfold:
        yield runfold


def test_ranks_stand_on_whole_slices_in_the_order_of_their_hosts(
    cluster: RayCluster, slices: Slices, service: Commands
) -> None:
    run = RayRun(service, "two", workers=4, **TPUS)
    assert slices.of(run, 1, 4) == ["a0", "a1", "b0", "b1"]
    assert len(cluster.groups()) == 3, "the whole, and the head of each slice"
    status = run.ends()
    assert (status["state"], status["attempt"]) == ("finished", 1)
    said = status["return_value"]
    assert isinstance(said, dict)
    environment = said["environment"]
    assert environment.pop("MEGASCALE_COORDINATOR_ADDRESS").endswith(":8081")
    assert environment == {"MEGASCALE_PORT": "8081", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "0"}
    cluster.leaves_nothing()


def test_ranks_that_share_a_host_see_their_own_chips(cluster: RayCluster, slices: Slices, service: Commands) -> None:
    each = {**TPUS, "scaling__resources_per_worker": '{"CPU": 0.1, "TPU": 2}'}
    run = RayRun(service, "halves", workers=4, **each)
    assert slices.of(run, 1, 4) in (["a0", "a0", "a1", "a1"], ["b0", "b0", "b1", "b1"])
    said = run.ends()["return_value"]
    assert isinstance(said, dict)
    bounds = {"TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1", "TPU_HOST_BOUNDS": "1,1,1"}
    assert said["environment"] == {"TPU_VISIBLE_CHIPS": "0,1", **bounds}
    cluster.leaves_nothing()


def test_who_finds_a_head_in_use_waits_gives_all_back_in_time_and_tries_again(
    cluster: RayCluster, slices: Slices, service: Commands
) -> None:
    with slices.in_use("b"):
        late = RayRun(
            service, "late", workers=4, timeouts__start_timeout_s=10, failure__controller_failure_limit=1, **TPUS
        )
        status = late.reaches("errored")
        error = status["error"]
        assert isinstance(error, dict)
        assert (error["type"], status["attempt"]) == ("StartTimeout", 2)
        assert "1 of 2 slices had a head in time: the others are in use" in str(error["message"])
        patiently(lambda: cluster.groups() == ["else"], cluster.groups)
        waits = RayRun(service, "waits", workers=4, **TPUS)
        patiently(lambda: len(mine(cluster, waits)) == 2, waits.story)
        waits.reaches("scheduling")
        patiently(lambda: waits.status["waiting"] == "2 whole slices of v4 2x2x2 needed, 1 free", waits.story)
    assert slices.of(waits, 1, 4) == ["a0", "a1", "b0", "b1"]
    assert waits.ends()["state"] == "finished"
    cluster.leaves_nothing()


def test_the_supervisor_is_killed_between_the_heads_and_again_at_work(
    cluster: RayCluster, slices: Slices, service: Commands
) -> None:
    with slices.in_use("a"):
        run = RayRun(service, "killed", workers=4, **TPUS)
        patiently(lambda: len(heads := mine(cluster, run)) == 2 and all("-head-" in one for one in heads), run.story)
        before = mine(cluster, run)
        kill_supervisor(service)
        patiently(lambda: not set(before) & set(mine(cluster, run)), lambda: mine(cluster, run))
    assert slices.of(run, 1, 4) == ["a0", "a1", "b0", "b1"]
    kill_supervisor(service)
    status = run.ends()
    assert (status["state"], status["attempt"]) == ("finished", 1)
    cluster.leaves_nothing()


def test_where_nobody_comes_after_the_supervisor_the_heads_are_given_back(
    cluster: RayCluster, slices: Slices, tmp_path: Path
) -> None:
    other = Commands(tmp_path)
    up = Up(other.start("up", "-o", "json", "--pool", "ray", "--ray-address", cluster.address))
    try:
        up.wait_ready()
        run = RayRun(other, "goes", workers=4, timeouts__adopt_within_s=1, **TPUS)
        slices.of(run, 1, 4)
    finally:
        up.end()
        other.end()
    cluster.leaves_nothing()


def test_a_host_that_is_drained_takes_its_slice_along(cluster: RayCluster, slices: Slices, service: Commands) -> None:
    run = RayRun(service, "moves", workers=2, **TPUS)
    name = slices.of(run, 1, 2)[0][0]
    drained = slices.hosts[name][1]
    cluster.drain(drained, within_s=4.0)
    (other,) = set(slices.hosts) - {name}
    assert slices.of(run, 2, 2) == [f"{other}0", f"{other}1"]
    assert run.ends()["state"] == "finished"
    cluster.kill(drained)
    slices.add(name, hosts=(1,))
    cluster.leaves_nothing()


def test_an_elastic_run_shrinks_and_grows_by_whole_slices(
    cluster: RayCluster, slices: Slices, service: Commands
) -> None:
    run = RayRun(
        service,
        "elastic",
        workers=0,
        scaling__num_workers="[2,4]",
        scaling__elastic_resize_monitor_interval_s=0,
        timeouts__resize_wait_s=1,
        failure__max_failures=3,
        **TPUS,
    )
    slices.of(run, run.trains_with(4), 4)
    cluster.kill(slices.hosts["b"].pop(1))
    assert slices.of(run, run.trains_with(2), 2) == ["a0", "a1"]
    slices.add("b", hosts=(1,))
    assert slices.of(run, run.trains_with(4), 4) == ["a0", "a1", "b0", "b1"]
    assert run.ends()["state"] == "finished"
    cluster.leaves_nothing()


def test_more_slices_than_there_ever_were_are_no_slices_to_wait_for(slices: Slices, service: Commands) -> None:
    assert len(slices.hosts) == 2
    run = RayRun(service, "never", workers=6, **TPUS)
    error = str(run.reaches("errored")["error"])
    assert "6 ranks need 3 whole slices of v4 2x2x2" in error
    assert "this cluster has had 2" in error


def mine(cluster: RayCluster, run: RayRun) -> list[str]:
    """Return the names of a run's placement groups."""
    return [name for name in cluster.groups() if f"-{run.run}-" in name]
