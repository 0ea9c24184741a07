"""Measures runfold: a service that is up, its ranks on this machine (`local`) or on a Ray cluster (`ray`)."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import peer_jobs
import psutil
from peer_common import HERE, PATIENCE_S, RUNS_COUNT, SETTLE_S, again, answer, folder, kill, measured, pid_of

import runfold

RUNFOLD = str(Path(sys.executable).with_name("runfold"))
CLUSTER_CPUS = 4


@dataclass(frozen=True)
class Service:
    """A service that is up."""

    data: Path
    pool: str

    def start(self, job: str, where: Path, ranks: int, torch: bool) -> None:
        """Run a job to its end."""
        script = "peer_runfold_torch_job.py" if torch else "peer_runfold_job.py"
        runfold.Trainer(
            f"{HERE / script}:train",
            train_loop_config={"job": job, "folder": str(where)},
            scaling_config=runfold.ScalingConfig(num_workers=ranks, placement_strategy="SPREAD"),
            run_config=runfold.RunConfig(
                name=f"peer-{job}",
                data_dir=self.data,
                pool=self.pool,
                failure_config=runfold.FailureConfig(max_failures=3),
            ),
        ).fit()

    @contextmanager
    def training(self, where: Path) -> Iterator[None]:
        """Have two ranks train for as long as the block lasts; they end well."""
        raised: list[BaseException] = []

        def fit() -> None:
            try:
                self.start("train", where, 2, False)
            except BaseException as error:
                raised.append(error)

        fitting = threading.Thread(target=fit, daemon=True)
        fitting.start()
        try:
            yield
        finally:
            (where / "stop").touch()
            fitting.join(PATIENCE_S)
        if raised or fitting.is_alive():
            raise RuntimeError(f"the run did not end well: {raised}")

    def pid_of(self, role: str) -> int:
        """A process of the service."""
        found = json.loads((self.data / "connection.json").read_text())["pids"][role]
        return int(found[0] if isinstance(found, list) else found)


@contextmanager
def service(pool: str, *options: str) -> Iterator[Service]:
    """Start a service, and stop it."""
    with tempfile.TemporaryDirectory(prefix="peers-runfold-", ignore_cleanup_errors=True) as data:
        words = [RUNFOLD, "up", "-o", "json", "--data", data, "--pool", pool, *options]
        up = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if up.stdout is None or not up.stdout.readline():
            raise RuntimeError("the service did not come up")
        try:
            yield Service(Path(data), pool)
        finally:
            up.terminate()
            up.communicate(timeout=PATIENCE_S)


def simple(measure: str, ranks: int, pool: str) -> None:
    """Measure on a service with room for all ranks."""
    if pool == "local":
        with service(pool, "--slots", str(max(CLUSTER_CPUS, ranks))) as up:
            measured(up.start, measure, ranks)
        return
    from ray.cluster_utils import Cluster

    head = {"num_cpus": max(CLUSTER_CPUS, ranks), "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        with service(pool, "--ray-address", cluster.address) as up:
            measured(up.start, measure, ranks)
    finally:
        cluster.shutdown()


def node_loss(pool: str) -> None:
    """Kill the node of one of two ranks, where there are three with room for one each."""
    values = [_lost_locally() if pool == "local" else _lost_on_ray() for _ in range(RUNS_COUNT)]
    said = "a node is a runner and its ranks" if pool == "local" else "only the lost place is replaced"
    answer(values, said)


def _lost_locally() -> float:
    with service("local", "--nodes", "3", "--slots", "1") as up, folder() as where, up.training(where):
        parents = psutil.Process(pid_of(where, 1)).parents()
        runner = next(parent for parent in parents if parent.name() == "runfold-runner")
        return again(where, kill(runner.pid))


def _lost_on_ray() -> float:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
        with service("ray", "--ray-address", cluster.address) as up, folder() as where, up.training(where):
            raylets = [parent.pid for parent in psutil.Process(pid_of(where, 1)).parents()]
            lost = next(node for node in nodes if node.all_processes["raylet"][0].process.pid in raylets)
            moment = time.monotonic()
            cluster.remove_node(lost, allow_graceful=False)
            return again(where, moment)
    finally:
        cluster.shutdown()


def controller() -> None:
    """Kill the controller."""
    with service("local", "--slots", "4") as up, folder() as where:
        with up.training(where):
            pid_of(where, 0)
            moment = kill(up.pid_of("controller"))
            time.sleep(2 * SETTLE_S)
            said = peer_jobs.after(where, 2, moment)
        answer([], f"the controller killed: {said}; another one goes on from the log, and fit() returns the result")


if __name__ == "__main__":
    name, count, where_to = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    match name:
        case "node":
            node_loss(where_to)
        case "controller":
            controller()
        case _:
            simple(name, count, where_to)
