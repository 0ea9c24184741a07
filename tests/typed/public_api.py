"""The public API as a user types it, pinned: mypy and pyright both read this file, strictly."""

from pathlib import Path
from typing import assert_type

import pandas as pd

import runfold
from runfold.events.transitions import StateName


def train(config: dict[str, object]) -> float:
    """A training function that calls everything there is to call."""
    context = runfold.get_context()
    assert_type(context.get_world_rank(), int)
    assert_type(context.get_world_size(), int)
    assert_type(context.get_local_rank(), int)
    assert_type(context.get_run_id(), str)
    runfold.barrier()
    runfold.broadcast_from_rank_zero({"seed": 1}, timeout_s=10)
    assert_type(runfold.all_gather(1.0, timeout_s=None), list[object])
    runfold.report({"loss": 0.5, "step": 1, "rank": context.get_world_rank()})
    return float(str(config["lr"]))


def save() -> None:
    """A training function that keeps its state."""
    checkpoint = runfold.get_checkpoint()
    assert_type(checkpoint, runfold.Checkpoint | None)
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            assert_type(folder, str)
        assert_type(checkpoint.to_directory(Path("here")), str)
        checkpoint.update_metadata({"epoch": 1})
    assert_type(runfold.should_checkpoint(together=True), bool)
    runfold.report({"loss": 0.5}, runfold.Checkpoint.from_directory(Path("here")), "epoch-1")
    runfold.report(
        {"loss": 0.5},
        checkpoint=runfold.Checkpoint("s3://bucket/here"),
        checkpoint_upload_mode=runfold.CheckpointUploadMode.ASYNC,
        checkpoint_upload_fn=lambda given, name: given,
        delete_local_checkpoint_after_upload=False,
    )


def start() -> runfold.Result:
    """A run started from Python."""
    trainer = runfold.Trainer(
        train,
        train_loop_config={"lr": 0.1},
        scaling_config=runfold.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=runfold.RunConfig(
            name="digits",
            storage_path=Path("runs"),
            failure_config=runfold.FailureConfig(max_failures=3),
            checkpoint_config=runfold.CheckpointConfig(num_to_keep=2),
        ),
    )
    assert_type(trainer.run_id, str)
    return trainer.fit()


def ask(result: runfold.Result) -> None:
    """What a result tells."""
    assert_type(result.run, str)
    assert_type(result.state, str)
    assert_type(result.reason, str)
    assert_type(result.attempts, int)
    assert_type(result.error, runfold.TrainingFailedError | runfold.RunAbortedError | None)
    if result.metrics is not None:
        assert_type([*result.metrics], list[str])


def start_by_reference() -> runfold.Result:
    """A function named by its file or module."""
    return runfold.Trainer("examples/digits.py:train", scaling_config=runfold.ScalingConfig(num_workers=2)).fit()


def look_back(result: runfold.Result) -> None:
    """A run's log, asked afterwards."""
    log = runfold.load(result.run)
    assert_type(log, runfold.RunLog)
    assert_type(log.story().state, StateName)
    assert_type(log.goodput(until="+10").goodput, float | None)
    assert_type(log.what_if({"failure.max_failures": 5}).ends, bool)
    assert_type(log.reports, pd.DataFrame)
    assert_type(log.audit().clean, bool)
