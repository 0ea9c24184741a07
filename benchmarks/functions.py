"""Training functions that are measured: they note when they are entered, on the clock that all processes share."""

import tempfile
import time
from pathlib import Path
from typing import TypedDict

import runfold

REPORTS_COUNT = 20_000
WARM_COUNT = 2_000


class Notes(TypedDict):
    """Where a rank writes down its times."""

    folder: str


def note(config: Notes, what: str) -> None:
    """Write down when something happened."""
    context = runfold.get_context()
    name = f"{what}.{context.get_attempt()}.{context.get_world_rank()}"
    (Path(config["folder"]) / name).write_text(repr(time.monotonic()))


def empty() -> None:
    """Do nothing."""


def enter(config: Notes) -> None:
    """Note when user code was entered."""
    note(config, "entered")


def fail_once(config: Notes) -> None:
    """Enter; in the first attempt, once all ranks have entered, rank 1 raises and the others wait for their end."""
    note(config, "entered")
    if runfold.get_context().get_attempt() > 1:
        return
    runfold.barrier()
    if runfold.get_context().get_world_rank() == 1:
        note(config, "raised")
        raise RuntimeError("boom")
    time.sleep(60)


class Saves(TypedDict):
    """How often a rank saves how much, and whether it waits for the upload."""

    count: int
    size_bytes: int
    asynchronous: bool
    together: bool


def save_many(config: Saves) -> dict[str, list[float]]:
    """Return how long each report with a checkpoint took, and when it was done, in seconds."""
    mode = runfold.CheckpointUploadMode.ASYNC if config["asynchronous"] else runfold.CheckpointUploadMode.SYNC
    took: list[float] = []
    done: list[float] = []
    for step in range(config["count"]):
        folder = Path(tempfile.mkdtemp(prefix="runfold-bench-"))
        (folder / f"model-{runfold.get_context().get_world_rank()}").write_bytes(b"w" * config["size_bytes"])
        if config["together"]:
            runfold.barrier()
        began = time.monotonic()
        runfold.report(
            {"step": step},
            checkpoint=runfold.Checkpoint.from_directory(folder),
            checkpoint_upload_mode=mode,
            delete_local_checkpoint_after_upload=True,
        )
        done.append(time.monotonic())
        took.append(done[-1] - began)
        if config["asynchronous"]:
            time.sleep(0.05)  # as training would go on: an upload waits only for those before it
    return {"took": took, "done": done}


def report_many() -> list[int]:
    """Return how long each of many reports took, in nanoseconds."""
    took: list[int] = []
    for step in range(WARM_COUNT + REPORTS_COUNT):
        metrics = {"loss": 1.0 / (step + 1)}
        began = time.perf_counter_ns()
        runfold.report(metrics)
        ended = time.perf_counter_ns()
        if step >= WARM_COUNT:
            took.append(ended - began)
        if step % 100 == 0:
            time.sleep(0.001)  # as a training step would: a rank does something between its reports
    return took


TRAINED_S = 1.0


def fail_later(config: Notes) -> None:
    """As `fail_once`, after a second of training: as good as always there was one."""
    note(config, "entered")
    if runfold.get_context().get_attempt() > 1:
        return
    runfold.barrier()
    time.sleep(TRAINED_S)
    if runfold.get_context().get_world_rank() == 1:
        note(config, "raised")
        raise RuntimeError("boom")
    time.sleep(60)
