"""Validations on a Ray cluster: they run where what they asked for is; training never notices what becomes of them."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from support.commands import Commands, Up
from support.processes import gone
from support.rayed import ON_RAY, Rank, RayCluster, RayRun, on_cluster, passwords, patiently
from support.victims import kill_supervisor, supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = ON_RAY
TOKEN = "t0ps3cret"
JUDGED = """
import os, pathlib, signal, sys, tempfile, time
import runfold

FOLDER = pathlib.Path(__file__).parent
RUN = os.environ.get("RUNFOLD_RUN", "")

def train(config):
    for how in config["ways"].split():
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "value").write_text("7")
            wish = runfold.ValidationTaskConfig(fn_kwargs={"how": how}, timeout_s=20 if how == "slow" else None)
            runfold.report({"step": 0}, checkpoint=runfold.Checkpoint.from_directory(folder), validation=wish)
    found = runfold.get_all_reported_checkpoints(timeout_s=600)
    kept = ("node", "environment", "token", "value")
    told = [[one.status, {name: one.metrics[name] for name in kept if name in one.metrics}] for one in found]
    while not (FOLDER / f"{RUN}.go").exists():
        time.sleep(0.05)
    return {"attempt": runfold.get_context().get_attempt(), "told": told}

def is_mine(number):
    try:
        (FOLDER / f"{RUN}.validation.{number}.taken").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def validate(checkpoint, how):
    number = next(number for number in range(100) if is_mine(number))
    me = FOLDER / f"{RUN}.validation.{number}"
    me.with_suffix(f".{number}.tmp").write_text(f"{os.getpid()} {os.getppid()} {os.environ['RUNFOLD_NODE']}")
    me.with_suffix(f".{number}.tmp").rename(FOLDER / f"{me.name}.pid")
    print(f"validation {number} of {RUN} prints", flush=True)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "raise":
        raise RuntimeError("no good")
    if how == "list":
        return [1]
    while how in ("waits", "slow") and not (FOLDER / f"{RUN}.judged").exists():
        time.sleep(0.05)
    print(f"validation {number} of {RUN} ends", file=sys.stderr, flush=True)
    with checkpoint.as_directory() as folder:
        value = int(pathlib.Path(folder, "value").read_text())
    kept = ("GREETING", "PREPARED", "CUDA_VISIBLE_DEVICES")
    environment = {k: os.environ[k] for k in kept if k in os.environ}
    token = len(os.environ.get("TOKEN", ""))
    return {"node": os.environ["RUNFOLD_NODE"], "environment": environment, "token": token, "value": value}
"""


class Judged(RayRun):
    """A run of one rank whose checkpoints are validated in these ways."""

    def __init__(self, runfold: Commands, name: str, ways: str, **settings: object) -> None:
        super().__init__(
            runfold,
            name,
            1,
            function="train",
            script=JUDGED,
            config__ways=ways,
            validation__entrypoint=f"{name}.py:validate",
            **settings,
        )

    def validation(self, number: int = 0) -> Rank:
        """Wait for a validation to be at work."""
        file = self.runfold.folder / f"{self.run}.validation.{number}.pid"
        patiently(file.exists, self.story)
        return Rank(file)

    def judge(self) -> None:
        """Let it end."""
        (self.runfold.folder / f"{self.run}.judged").touch()

    def told(self) -> list[tuple[str, dict[str, object]]]:
        """Let the run end; return what its rank was told of its checkpoints. It trained in one attempt."""
        status = self.ends()
        assert status["state"] == "finished", status
        value = status["return_value"]
        assert isinstance(value, dict)
        assert value["attempt"] == 1
        return [(str(status), dict(metrics)) for status, metrics in value["told"]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster() as made:
        made.add(cpus=1)  # here alone ranks stand
        made.add(cpus=0, num_gpus=2, resources={"judges": 2})
        yield made


@pytest.fixture(scope="module")
def service(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with on_cluster(tmp_path_factory.mktemp("service"), cluster, TOKEN=TOKEN) as runfold:
        yield runfold


def on_judges(**more: object) -> dict[str, object]:
    """Let validations stand where `judges` are, without a CPU."""
    return {"validation__resources__CPU": 0, "validation__resources__judges": 1, **more}


def test_a_validation_runs_where_what_it_asked_for_is(cluster: RayCluster, service: Commands) -> None:
    """A GPU on another node than the rank's, with variables of the job, secret ones and prepared ones."""
    run = Judged(
        service,
        "where",
        "waits",
        env__GREETING="hello",
        secret_env='["TOKEN"]',
        runtime_env__env_vars__PREPARED="yes",
        **on_judges(validation__resources__GPU=1),
    )
    validation = run.validation()
    assert cluster.called(validation.node) is cluster.nodes[1]
    assert psutil.Process(validation.pid) in cluster.family()
    (actor,) = [name for name in cluster.actors() if "validation:" in name]
    assert len(cluster.groups()) == 2, actor
    password = [secret for secret in passwords(service) if secret in "".join(validation_says(validation))]
    assert password == []
    run.judge()
    ((status, metrics),) = run.told()
    assert status == "validated"
    environment = metrics["environment"]
    assert isinstance(environment, dict)
    assert environment.pop("CUDA_VISIBLE_DEVICES") in ("0", "1")
    assert metrics == {
        "node": validation.node,
        "environment": {"GREETING": "hello", "PREPARED": "yes"},
        "token": len(TOKEN),
        "value": 7,
    }
    cluster.leaves_nothing()


def validation_says(validation: Rank) -> list[str]:
    """What can be read of a process, and of the one that forked it."""
    return [said for each in validation.family for said in (*each.cmdline(), *each.environ().values())]


def test_whatever_becomes_of_a_validation_is_a_status(cluster: RayCluster, service: Commands) -> None:
    run = Judged(service, "ways", "well segfault raise list slow", **on_judges(validation__max_concurrent=2))
    for number in range(4):
        patiently((run.runfold.folder / f"{run.run}.validation.{number}.pid").exists, run.story)
    told = [status for status, *_ in run.told()]
    assert told == ["validated", "failed", "failed", "failed", "timed_out"]
    for why in ("SIGSEGV", "RuntimeError: no good", "not list", "no result in time"):
        assert why in run.story()
    cluster.leaves_nothing()


def test_the_supervisor_is_killed_and_the_validation_goes_on(cluster: RayCluster, service: Commands) -> None:
    run = Judged(service, "left", "waits", **on_judges())
    family = run.validation().family
    kill_supervisor(service)
    assert all(process.is_running() for process in family)
    run.judge()
    ((status, metrics),) = run.told()
    assert (status, metrics["value"]) == ("validated", 7)
    assert begun(run) == 1
    cluster.leaves_nothing()


def test_a_validation_that_ends_while_there_is_no_supervisor_is_heard_of(
    cluster: RayCluster, service: Commands
) -> None:
    run = Judged(service, "unheard", "waits", **on_judges())
    validation = psutil.Process(run.validation().pid)
    killed = supervisor(service)
    killed.kill()
    run.judge()
    assert gone([validation]) == []
    ((status, _),) = run.told()
    assert (status, begun(run)) == ("validated", 1)
    cluster.leaves_nothing()


def test_what_watches_over_a_validation_is_killed_and_it_is_begun_again(cluster: RayCluster, service: Commands) -> None:
    run = Judged(service, "bereft", "waits", **on_judges())
    family = run.validation().family
    os.kill(cluster.actor_process(f"runfold-runfold-{run.run}/validation:"), signal.SIGKILL)
    run.validation(1)
    assert gone(family) == []
    run.judge()
    ((status, _),) = run.told()
    assert status == "validated"
    cluster.leaves_nothing()


def test_a_run_is_aborted_while_there_is_no_supervisor_and_its_validation_ends(
    cluster: RayCluster, service: Commands
) -> None:
    run = Judged(service, "unwanted", "waits", **on_judges())
    family = run.validation().family
    supervisor(service).kill()
    service.ok("abort", run.run, "--reason", "the test says so")
    run.reaches("aborted")
    assert gone(family) == []
    cluster.leaves_nothing()


def test_where_nobody_comes_after_the_supervisor_no_validation_is_left(cluster: RayCluster, tmp_path: Path) -> None:
    other = Commands(tmp_path)
    up = Up(other.start("up", "-o", "json", "--pool", "ray", "--ray-address", cluster.address))
    try:
        up.wait_ready()
        run = Judged(other, "goes", "waits", timeouts__adopt_within_s=1, **on_judges())
        family = run.validation().family
    finally:
        up.end()
        other.end()
    assert gone(family) == []
    cluster.leaves_nothing()


def test_a_service_that_is_stopped_ends_its_validations_and_has_said_what_they_print(
    cluster: RayCluster, tmp_path: Path
) -> None:
    other = Commands(tmp_path)
    up = Up(other.start("up", "-o", "json", "--pool", "ray", "--ray-address", cluster.address))
    try:
        up.wait_ready()
        run = Judged(other, "stopped", "well waits", **on_judges())
        family = run.validation(1).family
        up.stop()
        assert gone(family) == []
        said = "".join(file.read_text(encoding="utf-8") for file in (other.data / "logs").glob("*.log"))
        for words in ("prints", "ends"):
            assert f"validation 0 of {run.run} {words}\n" in said
    finally:
        up.end()
        other.end()
    cluster.leaves_nothing()


def test_a_node_is_killed_and_its_validation_is_begun_again_on_another(cluster: RayCluster, service: Commands) -> None:
    """The last test: the node is gone for good."""
    run = Judged(service, "stranded", "waits", **on_judges())
    first = run.validation()
    family = first.family
    cluster.kill(cluster.called(first.node))
    assert gone(family) == []
    cluster.add(cpus=0, resources={"judges": 2})
    again = run.validation(1)
    assert again.node != first.node
    run.judge()
    ((status, metrics),) = run.told()
    assert (status, metrics["node"]) == ("validated", again.node)
    cluster.leaves_nothing()


def begun(run: Judged) -> int:
    """How often its validation was begun."""
    return len(list(run.runfold.folder.glob(f"{run.run}.validation.*.pid")))
