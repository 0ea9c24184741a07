"""Ray Train's pattern "restore from a checkpoint after a worker failed", its imports changed and nothing else.

was:  from ray import train
      from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
      from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

python examples/ported/resume.py
"""

import os
import tempfile

import runfold as train
from runfold import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from runfold import Trainer as DataParallelTrainer
from runfold.collective import barrier


def train_loop_per_worker(config):
    start_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            with open(os.path.join(checkpoint_dir, "epoch.txt")) as file:
                start_epoch = int(file.read()) + 1
    print(f"starting at epoch {start_epoch}")
    for epoch in range(start_epoch, config["num_epochs"]):
        if epoch == config["fail_epoch"] and checkpoint is None:
            raise RuntimeError("simulated failure")
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            saved = None
            if train.get_context().get_world_rank() == 0:
                with open(os.path.join(temp_checkpoint_dir, "epoch.txt"), "w") as file:
                    file.write(str(epoch))
                saved = Checkpoint.from_directory(temp_checkpoint_dir)
            train.report({"epoch": epoch, "started_at": start_epoch}, checkpoint=saved)
        barrier()
    return start_epoch


if __name__ == "__main__":
    trainer = DataParallelTrainer(
        train_loop_per_worker,
        train_loop_config={"num_epochs": 6, "fail_epoch": 3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="resumed", failure_config=FailureConfig(max_failures=1)),
    )
    result = trainer.fit()
    print(f"{result.attempts} attempts; the last one began at epoch {result.return_value}")
    assert result.attempts == 2
    assert result.return_value == 3
