"""The torch backend: a process group over the ranks before their function is called."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import runfold
from runfold.errors import TrainingFailedError
from runfold.torch import TorchConfig, TorchTrainer
from support.torched import batches, gathers, needs_loader

NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed here; the step `torch` of .ci/run has it (pip install 'runfold[torch]')",
)


def config(data: Path) -> runfold.RunConfig:
    return runfold.RunConfig(name="torched", data_dir=data)


@NEEDS_TORCH
def test_ranks_are_a_process_group_and_are_again_after_a_restart(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        gathers,
        scaling_config=runfold.ScalingConfig(num_workers=2),
        run_config=runfold.RunConfig(
            name="torched", data_dir=tmp_path, failure_config=runfold.FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    assert result.attempts == 2
    assert result.return_value == {"sum": 3.0, "rank": "0", "world": "2", "addr": "127.0.0.1", "initialized": True}


@NEEDS_TORCH
def test_a_loader_is_shared_out_and_batches_can_be_tensors(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        needs_loader, scaling_config=runfold.ScalingConfig(num_workers=2), run_config=config(tmp_path)
    )
    assert trainer.fit().return_value == [4, 4]
    whole = TorchTrainer(batches, run_config=config(tmp_path / "one"), datasets={"train": [[1.0], [2.0], [3.0]]})
    assert whole.fit().return_value == [2, 1]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_the_run_says_how_to_have_it_and_is_not_tried_again(tmp_path: Path) -> None:
    trainer = TorchTrainer(lambda: None, run_config=config(tmp_path))
    with pytest.raises(TrainingFailedError, match=r"runfold\[torch\]") as caught:
        trainer.fit()
    assert caught.value.result is not None
    assert caught.value.result.attempts == 1


def test_options_are_checked() -> None:
    assert TorchConfig("gloo", timeout_s=5.0).options == {"timeout_s": 5.0, "backend": "gloo"}
    with pytest.raises(ValueError, match="init_method"):
        TorchConfig(init_method="file")
