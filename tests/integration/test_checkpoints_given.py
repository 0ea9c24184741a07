"""A filesystem of the user's own: pickled in Python, fetched where it is needed, kept out of the log."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

import runfold
from runfold.replay.source import load


def saves() -> int:
    """Every rank saves twice, from where the run before left off."""
    checkpoint = runfold.get_checkpoint()
    rank = runfold.get_context().get_world_rank()
    first = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = int(Path(folder, f"state-{rank}").read_text()) + 1
    for step in range(first, first + 2):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"state-{rank}").write_text(str(step))
            runfold.report({"step": step}, checkpoint=runfold.Checkpoint.from_directory(folder))
        runfold.barrier()
    return first


def test_runs_on_a_given_filesystem_continue_each_other(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    files = DirFileSystem(path=str(tmp_path / "mine"), fs=LocalFileSystem())
    trainer = [
        runfold.Trainer(
            saves,
            scaling_config=runfold.ScalingConfig(num_workers=2),
            run_config=runfold.RunConfig(
                name="given", data_dir=tmp_path / "data", storage_filesystem=files, storage_path="runs"
            ),
        )
        for _ in range(2)
    ]
    assert [one.fit().return_value for one in trainer] == [0, 2]
    kept = sorted(path.name for path in (tmp_path / "mine" / "runs" / "given").glob("checkpoint_*"))
    assert kept == [f"checkpoint_{index:06d}_1" for index in range(4)]
    entries = load(trainer[0].run_id, data_dir=tmp_path / "data").entries
    assert str(tmp_path / "mine") not in repr(entries[0].transitions[0])
