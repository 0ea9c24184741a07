"""Ray Train's documented patterns with their imports changed: they run, and come to what they should."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "ported"
TIMEOUT_S = 150.0
NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed here; the step `torch` of .ci/run has it (pip install 'runfold[torch]')",
)


def example(name: str, data: Path) -> str:
    """Run an example as its user does, and return what it printed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RUNFOLD_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=data,
        env={**kept, "RUNFOLD_DATA": str(data / "data"), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_plain_function_with_checkpoints(tmp_path: Path) -> None:
    said = example("checkpoints.py", tmp_path)
    assert "best: {'epoch': 7" in said
    assert "2 checkpoints kept" in said


def test_resuming_after_a_failure(tmp_path: Path) -> None:
    assert "2 attempts; the last one began at epoch 3" in example("resume.py", tmp_path)


@NEEDS_TORCH
def test_distributed_data_parallel_with_pytorch(tmp_path: Path) -> None:
    assert "held-out images are read correctly; 4 tensors in the checkpoint" in example("torch_ddp.py", tmp_path)
