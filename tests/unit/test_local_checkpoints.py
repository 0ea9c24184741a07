"""Checkpoints in local mode: the same calls and directories, in this process."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fsspec

import runfold


def fit(data: Path, **config: object) -> runfold.Result:
    run_config = runfold.RunConfig(
        data_dir=data,
        checkpoint_config=runfold.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss"),
        **config,  # type: ignore[arg-type]  # each is a field
    )
    return runfold.Trainer(saves, scaling_config=runfold.ScalingConfig(num_workers=0), run_config=run_config).fit()


def saves() -> int:
    checkpoint = runfold.get_checkpoint()
    first = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = int(Path(folder, "state").read_text()) + 1
    assert not runfold.should_checkpoint(together=True)
    for step in range(first, first + 3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state").write_text(str(step))
            runfold.report({"loss": float(step)}, checkpoint=runfold.Checkpoint.from_directory(folder))
    return first


def there(result: runfold.Result) -> list[str]:
    folders = (path for path in Path(str(result.path)).iterdir() if path.is_dir())
    return sorted(path.name for path in folders if not path.name.startswith("."))


def test_checkpoints_are_committed_and_the_best_are_kept(tmp_path: Path) -> None:
    result = fit(tmp_path)
    assert there(result) == ["checkpoint_000001_1", "checkpoint_000002_1"]
    assert isinstance(result.checkpoint, runfold.Checkpoint)
    assert Path(result.checkpoint.path).name == "checkpoint_000002_1"


def test_the_same_name_continues(tmp_path: Path) -> None:
    assert fit(tmp_path, name="mine").return_value == 0
    again = fit(tmp_path, name="mine")
    assert again.return_value == 3
    assert there(again) == ["checkpoint_000004_1", "checkpoint_000005_1"]


def test_a_filesystem_of_ones_own(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    result = fit(tmp_path, storage_filesystem=files, storage_path=f"/{tmp_path.name}", name="mine")
    assert str(result.path) == f"/{tmp_path.name}/mine"
    assert files.exists(f"/{tmp_path.name}/mine/checkpoint_000002_1/state")
