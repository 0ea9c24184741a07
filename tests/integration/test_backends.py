"""Backends of one's own, named by where they are: the shapes that other frameworks have need no other Protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

import runfold
from runfold.errors import TrainingFailedError

SHAPES = Path(__file__).parents[1] / "support" / "shapes.py"
RANKS = 2


def fit(data: Path, shape: str, function: str, failures: int = 0) -> runfold.Result:
    return runfold.Trainer(
        f"{SHAPES}:{function}",
        scaling_config=runfold.ScalingConfig(num_workers=RANKS),
        backend_config=runfold.BackendConfig(kind=f"{SHAPES}:{shape}"),
        run_config=runfold.RunConfig(
            name=function.replace("_", "-"),
            data_dir=data,
            failure_config=runfold.FailureConfig(max_failures=failures, controller_failure_limit=failures),
        ),
    ).fit()


@pytest.mark.parametrize(
    ("shape", "function", "expected"),
    [
        (
            "Jax",
            "trains_jax",
            [
                {"rank": 0, "size": 2, "met": [0, 1], "platform": "cpu"},
                {"rank": 1, "size": 2, "met": [1], "platform": "cpu"},
            ],
        ),
        ("TensorFlow", "trains_tensorflow", [[0, 2, "1"], [1, 2, "1"]]),
        ("XGBoost", "trains_xgboost", ["[xgboost.rank=00000000]", "[xgboost.rank=00000001]"]),
        ("LightGBM", "trains_lightgbm", [[2, True], [2, True]]),
    ],
)
def test_the_shapes_of_other_frameworks_fit(tmp_path: Path, shape: str, function: str, expected: object) -> None:
    assert fit(tmp_path, shape, function).return_value == expected


def test_a_backend_that_is_not_there_is_told_as_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError, match="has no 'Nobody'") as caught:
        fit(tmp_path, "Nobody", "trains_jax", failures=3)
    assert caught.value.result is not None
    assert caught.value.result.attempts == 1


def test_what_a_backend_raises_before_the_ranks_have_met_is_a_failure_to_meet_and_retried(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError, match=r"meet\.gather\(data\): give bytes, not str: text\.encode") as caught:
        fit(tmp_path, "Worded", "trains_jax", failures=1)
    assert caught.value.result is not None
    assert caught.value.result.attempts == 2
    assert "startup failure 2" in str(caught.value)
