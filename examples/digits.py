"""Train a classifier of handwritten digits, data parallel: each rank learns from its share, then all average.

    runfold run examples/digits.py:train --workers 2
    runfold run examples/digits.py:train --workers 2 --set config.epochs=20 --set config.learning_rate=0.01

The data are scikit-learn's 1,797 images of 8 x 8 pixels; one in five is held out to measure the accuracy.
"""

from typing import TypedDict, cast

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import runfold


class Config(TypedDict, total=False):
    """What `--set config.NAME=VALUE` can change. `fail_rank` raises in `fail_epoch` of the first attempt."""

    epochs: int
    learning_rate: float
    hidden: int
    seed: int
    fail_rank: int
    fail_epoch: int


def train(config: Config) -> float:
    """Train on every rank's share and return the accuracy on the held-out images."""
    context = runfold.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    seed = config.get("seed", 7)

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16.0, labels, test_size=0.2, random_state=seed, stratify=labels
    )
    x_share, y_share = x_train[rank::world_size], y_train[rank::world_size]

    model = MLPClassifier(
        hidden_layer_sizes=(config.get("hidden", 64),),
        learning_rate_init=config.get("learning_rate", 0.01),
        batch_size=32,
        random_state=seed,  # the same first weights on every rank
    )
    accuracy = 0.0
    for epoch in range(config.get("epochs", 10)):
        if rank == config.get("fail_rank") and epoch == config.get("fail_epoch", 3) and context.get_attempt() == 1:
            raise RuntimeError(f"rank {rank} was told to fail in epoch {epoch} of the first attempt")
        model.partial_fit(x_share, y_share, classes=range(10))
        average(model)
        accuracy = float(model.score(x_test, y_test))
        runfold.report({"epoch": epoch, "loss": float(model.loss_), "accuracy": accuracy})
    if rank == 0:
        print(f"{accuracy:.1%} of {len(y_test)} held-out images are read correctly")
    return accuracy


def average(model: MLPClassifier) -> None:
    """Replace this rank's parameters by the mean of all ranks'."""
    mine = [*model.coefs_, *model.intercepts_]
    everyones = cast("list[list[np.ndarray]]", runfold.all_gather(mine))
    for i, parameter in enumerate(mine):
        parameter[...] = np.mean([theirs[i] for theirs in everyones], axis=0)
