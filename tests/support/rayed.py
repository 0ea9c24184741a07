"""A Ray cluster of several nodes on this machine, and a service whose pool it is."""

from __future__ import annotations

import importlib.util
import json
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from support.commands import Commands
from support.processes import name_of
from support.waiting import LOOK_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Self

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed here; `make test-ray` has it (pip install 'runfold[ray]')",
)
ON_RAY = [NEEDS_RAY, pytest.mark.timeout(600)]
"""A test waits many times, and each time for processes of a cluster: together they may take longer than others do."""
SMALL = {"object_store_memory": 80 * 1024 * 1024}
PATIENCE_S = 90.0
OURS = ("runfold-", "rank-", "validation")
REASON_PREEMPTION = 2
"""As Ray's drain request numbers it."""
WAITING = """
import os, pathlib, time
import runfold

FOLDER = pathlib.Path(__file__).parent

def alone(config):
    return train({"together": False})

def train(config):
    context = runfold.get_context()
    me = f"{os.environ['RUNFOLD_RUN']}.{context.get_attempt()}.{context.get_world_rank()}"
    (FOLDER / (me + ".tmp")).write_text(f"{os.getpid()} {os.getppid()} {os.environ['RUNFOLD_NODE']}")
    (FOLDER / (me + ".tmp")).rename(FOLDER / (me + ".pid"))
    together = config.get("together", True)
    if together:
        runfold.barrier()
    if context.get_attempt() < config.get("fails_before", 0):
        raise RuntimeError("once")
    step = 0
    while not (FOLDER / f"{os.environ['RUNFOLD_RUN']}.go").exists():
        step += 1
        runfold.report({"step": step})
        time.sleep(0.05)
    if together:
        runfold.barrier()
    kept = ("GREETING", "PREPARED", "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE", "TPU_CHIPS", "TPU_HOST", "MEGASCALE")
    environment = {k: v for k, v in os.environ.items() if k.startswith(kept)}
    return {"attempt": context.get_attempt(), "environment": environment, "token": len(os.environ.get("TOKEN", ""))}
"""


class RayCluster:
    """A cluster whose head has no room, while the block lasts. This process looks at it once it is asked to."""

    def __init__(self, **head: object) -> None:
        self._core: ModuleType = import_module("ray")
        make = import_module("ray.cluster_utils").Cluster
        options = {"num_cpus": 0, "include_dashboard": False, **SMALL, **head}
        self._cluster = patiently_started(lambda: make(initialize_head=True, head_node_args=options))
        self.address: str = self._cluster.address
        self.nodes: list[object] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _ray(self) -> ModuleType:
        if not self._core.is_initialized():
            self._core.init(address=self.address, namespace="looking", log_to_driver=False, configure_logging=False)
        return self._core

    def add(self, cpus: int = 2, **options: object) -> object:
        """Add a node; return what `kill` and `drain` take."""
        node = patiently_started(lambda: self._cluster.add_node(num_cpus=cpus, **SMALL, **options))
        self.nodes.append(node)
        return node

    def called(self, name: str) -> object:
        """Return the node that runfold calls so."""
        return next(node for node in self.nodes if name.endswith(f"-{self.number(node)[:8]}"))

    @staticmethod
    def number(node: object) -> str:
        """Return a node's id."""
        return str(node.node_id)  # type: ignore[attr-defined]  # ray.cluster_utils has no types

    def kill(self, node: object) -> None:
        """End a node as when its machine is gone."""
        self._cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)

    def drain(self, node: object, within_s: float) -> None:
        """Announce that a node will be taken back."""
        gcs = self._ray._private.worker.global_worker.gcs_client
        deadline_ms = int((time.time() + within_s) * 1000)
        accepted, why = gcs.drain_node(self.number(node), REASON_PREEMPTION, "the test says so", deadline_ms)
        assert accepted, why

    @property
    def util(self) -> ModuleType:
        """What somebody else would use of it."""
        return import_module(f"{self._ray.__name__}.util")

    def actors(self) -> list[str]:
        """Return the names of all actors."""
        return sorted(one["name"] for one in self._ray.util.list_named_actors(all_namespaces=True))

    def groups(self) -> list[str]:
        """Return the names of all placement groups that stand."""
        table = self._ray.util.placement_group_table()
        return sorted(one["name"] for one in table.values() if one["state"] != "REMOVED")

    def actor_process(self, name: str) -> int:
        """Return the process of an actor whose name begins so."""
        listed = self._ray._private.state.actors().values()
        return int(next(one["Pid"] for one in listed if one["Name"].startswith(name) and one["State"] == "ALIVE"))

    def family(self) -> list[psutil.Process]:
        """Return runfold's processes on the cluster's nodes."""
        raylets = [info.process.pid for node in self._all() for info in node.all_processes["raylet"]]  # type: ignore[attr-defined]  # as above
        return [each for raylet in raylets for each in below(raylet) if name_of(each).startswith(OURS)]

    @property
    def logs(self) -> Path:
        """Where Ray, and what runs on it, writes its logs."""
        return Path(self._cluster.head_node.get_logs_dir_path())

    def leaves_nothing(self) -> None:
        """Wait until no actor, no placement group and no process of runfold's is left."""
        patiently(lambda: not (self.actors() or self.groups() or self.family()), lambda: self._left())

    def _left(self) -> object:
        return self.actors(), self.groups(), self.family()

    def _all(self) -> list[object]:
        return list(self._cluster.list_all_nodes())

    def close(self) -> None:
        """End everything."""
        self._core.shutdown()
        self._cluster.shutdown()


def patiently_started(start: Callable[[], Any]) -> Any:
    """Start a node of Ray's, which gives itself thirty seconds; on a busy machine once more, without what is left."""
    before = set(psutil.Process().children())
    try:
        return start()
    except Exception as error:
        if "timed out" not in str(error).lower():
            raise
    left = [each for one in set(psutil.Process().children()) - before for each in (one, *one.children(recursive=True))]
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=PATIENCE_S)
    return start()


def below(pid: int) -> list[psutil.Process]:
    """Return what a process has started; nothing when it has ended, as a raylet whose node was taken back."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def patiently(holds: object, why: object = lambda: "") -> None:
    """Wait until something holds."""
    assert callable(holds)
    assert callable(why)
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, why()
        time.sleep(LOOK_EVERY_S)


class RayRun:
    """A run on the pool `ray` that goes on until the test lets it end."""

    def __init__(
        self,
        runfold: Commands,
        name: str,
        workers: int = 2,
        *,
        function: str = "train",
        script: str = WAITING,
        **settings: object,
    ) -> None:
        self.runfold = runfold
        file = "waiting.py" if script is WAITING else f"{name}.py"
        runfold.write(file, script)
        options = {"pool": "ray", **{key.replace("__", "."): value for key, value in settings.items()}}
        words = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
        size = ("--workers", str(workers)) if workers else ()
        self.run = runfold.ok("submit", f"{file}:{function}", "--name", name, *size, *words).out.strip()

    def ranks(self, attempt: int, count: int = 2) -> list[Rank]:
        """Wait for the ranks of an attempt to be at work."""
        files = [self.runfold.folder / f"{self.run}.{attempt}.{rank}.pid" for rank in range(count)]
        patiently(lambda: all(file.exists() for file in files), lambda: self.status)
        return [Rank(file) for file in files]

    @property
    def status(self) -> dict[str, object]:
        """What its log says of it."""
        return self.runfold.ok("get", self.run, "-o", "json").document

    def reaches(self, *states: str) -> dict[str, object]:
        """Wait for one of these states."""
        patiently(lambda: self.status["state"] in states, lambda: self.status)
        return self.status

    def trains_with(self, ranks: int) -> int:
        """Wait until it trains with so many ranks; return its attempt."""
        found: list[object] = []

        def trains() -> bool:
            status = self.status
            found[:] = [status["attempt"]]
            return (status["state"], status["world_size"]) == ("running", ranks)

        patiently(trains, self.story)
        return int(str(found[0]))

    def story(self) -> str:
        """Its replay, as a person reads it."""
        return self.runfold.ok("replay", self.run, "--full").out

    def ends(self) -> dict[str, object]:
        """Let it end, wait for it, and return what its log says of it."""
        (self.runfold.folder / f"{self.run}.go").touch()
        return self.reaches("finished", "errored", "aborted")


class Rank:
    """A rank at work, or at an end: its process, that of its spawner, its node."""

    def __init__(self, file: Path) -> None:
        pid, parent, self.node = file.read_text(encoding="utf-8").split()
        self.pid, self._parent = int(pid), int(parent)

    @property
    def family(self) -> list[psutil.Process]:
        """Its process and its spawner's; it must be alive."""
        return [psutil.Process(self.pid), psutil.Process(self._parent)]


@contextmanager
def on_cluster(folder: Path, cluster: RayCluster, **env: str) -> Iterator[Commands]:
    """Commands beside a service whose pool is the cluster."""
    runfold = Commands(folder)
    try:
        with runfold.service("--pool", "ray", "--ray-address", cluster.address, **env):
            yield runfold
    finally:
        runfold.end()


def passwords(runfold: Commands) -> list[str]:
    """Return the passwords of the service's broker."""
    said = json.loads((runfold.data / "connection.json").read_text(encoding="utf-8"))
    found = [role["password"] for role in said["roles"].values()]
    assert found
    return found
