"""Measures Ray Train: a controller that is an actor, on a cluster that is up."""

import logging
import sys
import threading
import time
from pathlib import Path

import peer_jobs
import psutil
import ray
import ray.train
from peer_common import HERE, RUNS_COUNT, SETTLE_S, again, answer, arguments, folder, kill, measured, pid_of
from ray.cluster_utils import Cluster
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train(config: dict[str, object]) -> None:
    """Be a rank."""
    sys.path.insert(0, str(config["here"]))
    if config["torch"]:
        import torch  # noqa: F401  # what is measured
    import peer_jobs
    import ray.train

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    peer_jobs.run(
        str(config["job"]), Path(str(config["folder"])), rank, world, lambda said: ray.train.report(dict(said))
    )


def start(job: str, where: Path, ranks: int, torch: bool) -> None:
    """Run a job to its end."""
    DataParallelTrainer(
        train,
        train_loop_config={"job": job, "folder": str(where), "torch": torch, "here": str(HERE)},
        scaling_config=ray.train.ScalingConfig(num_workers=ranks, placement_strategy="SPREAD"),
        run_config=ray.train.RunConfig(
            storage_path=str(where / "storage"), failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    ).fit()


def node_loss() -> None:
    """Kill the node of one of two ranks, on a cluster with three nodes that have room for one each."""
    values: list[float] = []
    for _ in range(RUNS_COUNT):
        cluster, nodes = three_nodes()
        with folder() as where:
            fitting = threading.Thread(target=start, args=("train", where, 2, False), daemon=True)
            fitting.start()
            try:
                raylets = [parent.pid for parent in psutil.Process(pid_of(where, 1)).parents()]
                lost = next(node for node in nodes if raylet_of(node) in raylets)
                moment = time.monotonic()
                cluster.remove_node(lost, allow_graceful=False)
                values.append(again(where, moment))
            finally:
                (where / "stop").touch()
                fitting.join(30.0)
                ray.shutdown()
                cluster.shutdown()
    answer(values, "a node that is free takes its place")


def controller() -> None:
    """Kill the process of the controller."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    with folder() as where:
        raised: list[str] = []

        def fit() -> None:
            try:
                start("train", where, 2, False)
            except BaseException as error:
                raised.append(type(error).__name__)

        fitting = threading.Thread(target=fit, daemon=True)
        fitting.start()
        try:
            pid_of(where, 0)
            moment = kill(controller_pid())
            time.sleep(2 * SETTLE_S)
            said = peer_jobs.after(where, 2, moment)
        finally:
            (where / "stop").touch()
        fitting.join(20.0)
        ended = f"fit() raises {raised[0]}" if raised else "fit() has not returned 20 s later"
        answer([], f"the controller's actor killed: {said}; {ended}; its state is lost")
    ray.shutdown()


def controller_pid() -> int:
    """The process of the controller, among those of this cluster."""
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        mine = {parent.pid for parent in process.parents()} & {child.pid for child in psutil.Process().children()}
        if words.startswith("ray::") and "TrainController" in words and mine:
            return process.pid
    raise LookupError("no process of a controller was found")


def three_nodes() -> tuple[Cluster, list[object]]:
    """A head without room, and three nodes with room for one rank each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes: list[object] = [cluster.add_node(num_cpus=1) for _ in range(3)]
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    return cluster, nodes


def raylet_of(node: object) -> int:
    """The process of a node."""
    processes = getattr(node, "all_processes")  # noqa: B009  # Ray comes without types
    return int(processes["raylet"][0].process.pid)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    measure, count = arguments()
    match measure:
        case "node":
            node_loss()
        case "controller":
            controller()
        case _:
            ray.init(address="local", num_cpus=max(4, count), include_dashboard=False, log_to_driver=False)
            measured(start, measure, count)
            ray.shutdown()
