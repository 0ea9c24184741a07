"""Ray Train's pattern "save a checkpoint with each report", its imports changed and nothing else.

was:  from ray import train
      from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
      from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

python examples/ported/checkpoints.py
"""

import json
import os
import tempfile

import numpy as np

import runfold as train
from runfold import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from runfold import Trainer as DataParallelTrainer


def train_loop_per_worker(config):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 3))
    y = x @ np.array([1.0, -2.0, 0.5])
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    x, y = x[rank::size], y[rank::size]
    weights = np.zeros(3)
    for epoch in range(config["num_epochs"]):
        gradient = 2 * x.T @ (x @ weights - y) / len(y)
        gradient = np.mean(train.all_gather(gradient), axis=0)
        weights -= config["lr"] * gradient
        loss = float(np.mean((x @ weights - y) ** 2))
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            if rank == 0:
                with open(os.path.join(temp_checkpoint_dir, "model.json"), "w") as file:
                    json.dump({"epoch": epoch, "weights": weights.tolist()}, file)
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            train.report({"loss": loss, "epoch": epoch}, checkpoint=checkpoint)


if __name__ == "__main__":
    trainer = DataParallelTrainer(
        train_loop_per_worker,
        train_loop_config={"lr": 0.2, "num_epochs": 8},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="linear",
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
            ),
        ),
    )
    result = trainer.fit()
    best = result.get_best_checkpoint("loss", "min")
    with best.as_directory() as checkpoint_dir, open(os.path.join(checkpoint_dir, "model.json")) as file:
        print("best:", json.load(file))
    print(f"loss {result.metrics['loss']:.6f}, {len(result.best_checkpoints)} checkpoints kept in {result.path}")
