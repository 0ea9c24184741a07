"""What user code beside a group is tried with: training functions, validations, callbacks that leave traces."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import runfold
from runfold.events.base import Json
from runfold.workers.callbacks import ControllerState, Decision, WorkerInfo


def save(value: int, *, validation: bool | runfold.ValidationTaskConfig = False) -> None:
    """Report a checkpoint with a number in it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "value").write_text(str(value), encoding="utf-8")
        checkpoint = runfold.Checkpoint.from_directory(folder)
        runfold.report({"step": value}, checkpoint=checkpoint, validation=validation)


def validate(checkpoint: runfold.Checkpoint, how: str = "well", folder: str = "") -> object:
    """Read the number, and return it as accuracy, or end otherwise."""
    with checkpoint.as_directory() as found:
        value = int((Path(found) / "value").read_text(encoding="utf-8"))
    match how:
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "raise":
            raise RuntimeError("no good")
        case "list":
            return [value]
        case "none":
            return None
        case "object":
            return {"accuracy": object()}
        case "limited":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
            return {"accuracy": len(bytearray(1 << 32))}
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "hungry":
            # More than the control group has: the kernel ends this process.
            return {"accuracy": len([os.urandom(1 << 20) for _ in range(4096)])}
        case "slow":
            time.sleep(60)
        case "gated":
            # Goes on once somebody says so; says how often it was begun.
            with (Path(folder) / "begun").open("a", encoding="utf-8") as file:
                file.write("x")
            while not (Path(folder) / "go").exists():
                time.sleep(0.02)
        case _:
            pass
    return {"accuracy": value / 10}


def train_and_validate(config: dict[str, object]) -> object:
    """Save a checkpoint for each word of `ways`; return how all of them came out."""
    ways = str(config["ways"]).split()
    for value, how in enumerate(ways):
        arguments: dict[str, object] = {"how": how, "folder": str(config.get("folder", ""))}
        timeout_s = 0.3 if how == "slow" else None
        save(value, validation=runfold.ValidationTaskConfig(fn_kwargs=arguments, timeout_s=timeout_s))
    if config.get("leave"):
        return None
    found = runfold.get_all_reported_checkpoints()
    return {one.checkpoint.path.rpartition("/")[2]: [one.status, one.metrics.get("accuracy")] for one in found}


class Traces(
    runfold.ControllerCallback, runfold.WorkerGroupCallback, runfold.WorkerCallback, runfold.TrainContextCallback
):
    """Writes down what it is asked, and answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = 0

    def trace(self, text: str) -> None:
        self.asked += 1
        with (self.folder / "traces").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def on_controller_start_worker_group(
        self, *, scaling_config: dict[str, Json], num_workers: int
    ) -> Mapping[str, str] | None:
        self.trace(f"start {num_workers}")
        return {"runfold.node": "local"}

    def before_controller_execute_resize_decision(self, resize_decision: Decision) -> None:
        self.trace(f"resize {resize_decision.num_workers}")

    def before_controller_execute_failure_decision(self, failure_decision: Decision) -> None:
        self.trace(f"failure {failure_decision.kind} {failure_decision.error}")

    def before_init_train_context(self, workers: Sequence[WorkerInfo]) -> Mapping[str, Sequence[Json]]:
        return {"seat": [f"seat {worker.world_rank}" for worker in workers]}

    def before_controller_shutdown(self) -> None:
        self.trace(f"shutdown after {self.asked}")

    @runfold.gate(on_error="warn")
    def after_controller_state_update(self, previous_state: ControllerState, current_state: ControllerState) -> None:
        if current_state.name == "running":
            raise RuntimeError("only told")

    def after_init_train_context(self) -> None:
        self.trace("rank begins")

    def before_worker_shutdown(self) -> None:
        self.trace("rank ends")

    @contextlib.contextmanager
    def on_report(self) -> Iterator[None]:
        self.trace("report (")
        yield
        self.trace("report )")

    @contextlib.contextmanager
    def on_checkpoint_sync(self) -> Iterator[None]:
        self.trace("sync")
        yield

    @contextlib.contextmanager
    def on_checkpoint_transfer(self) -> Iterator[None]:
        self.trace("transfer")
        yield


class Refuses(runfold.ControllerCallback):
    """Raises, or never answers, when it is asked before the shutdown."""

    def __init__(self, how: str) -> None:
        self.how = how

    def before_controller_shutdown(self) -> None:
        if self.how == "hangs":
            time.sleep(60)
        if self.how == "crashes":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("not yet")


def fails_once(config: dict[str, object]) -> object:
    """Fail in the first attempt; then report a checkpoint and return what the gate gave this rank."""
    if runfold.get_context().get_attempt() == 1:
        raise RuntimeError("boom")
    save(1)
    return runfold.get_context().get_arguments()


def wait_for_the_end(config: dict[str, object]) -> None:
    """Say that it is there, then wait to be ended."""
    runfold.report({"step": 0})
    time.sleep(600)


def go_over_data(config: dict[str, object]) -> object:
    """Write down every batch before its report; rank 1 fails at the third of the first attempt."""
    context = runfold.get_context()
    rank, attempt = context.get_world_rank(), context.get_attempt()
    shard = runfold.get_dataset_shard("train")
    runfold.get_checkpoint()
    for begun, batch in enumerate(shard.iter_batches(batch_size=2), start=1):
        if attempt == 1 and begun == 3:
            # What was reported is committed by now, or never will be.
            while not runfold.get_all_reported_checkpoints():
                time.sleep(0.01)
            runfold.barrier()
            if rank == 1:
                raise RuntimeError("boom")
            runfold.barrier()
        with (Path(str(config["folder"])) / f"rows-{rank}").open("a", encoding="utf-8") as file:
            file.write(f"{attempt} {batch}\n")
        if rank == 0:
            save(begun)
        else:
            runfold.report({"step": begun})
        runfold.barrier()
    return shard.epoch


def saves_three() -> object:
    """Save three checkpoints, the first the best; end with a report that is hard to write down."""
    for value in (3, 1, 2):
        save(value, validation=True)
    runfold.report({"loss": math.nan, "deep": {"a": [1, None]}})
    return {"set": {1, 2}}


def saves_and_fails() -> None:
    """Save a checkpoint, then fail."""
    save(1)
    raise RuntimeError("boom")


def asks_for_checkpoints(config: dict[str, object]) -> object:
    """Save from rank 0 alone; ask in rank 1, in both ways, while a validation is held back, and once it is over."""
    folder, rank = Path(str(config["folder"])), runfold.get_context().get_world_rank()
    arguments: dict[str, object] = {"how": "gated", "folder": str(folder)}
    if rank == 0:
        save(5, validation=runfold.ValidationTaskConfig(fn_kwargs=arguments))
        return None
    runfold.report({"step": 0})
    modes = runfold.CheckpointConsistencyMode
    committed = runfold.get_all_reported_checkpoints(modes.COMMITTED)
    late = runfold.get_all_reported_checkpoints(modes.VALIDATED, timeout_s=0.3)
    (folder / "go").touch()
    validated = runfold.get_all_reported_checkpoints()
    runfold.report({"told": [[one.status for one in found] for found in (committed, late, validated)]})
    return None


def whole_data(config: dict[str, object]) -> object:
    """Return all rows, and what checkpoints there are."""
    save(1)
    rows = list(runfold.get_dataset_shard("train"))
    return [rows, [one.status for one in runfold.get_all_reported_checkpoints()]]
