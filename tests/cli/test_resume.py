"""`runfold resume`: a run's storage is its history, and so that of the runs that went on in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.commands import Commands

TRAINING = """
import tempfile
from pathlib import Path

import runfold


def one_more():
    done, checkpoint = 0, runfold.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            done = int(Path(folder, "done").read_text())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "done").write_text(str(done + 1))
        runfold.report({"done": done + 1}, checkpoint=runfold.Checkpoint.from_directory(folder))
    return done + 1
"""


def test_a_run_is_resumed_from_the_newest_checkpoint_in_its_storage_as_its_help_says(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    runfold.ok("run", "jobs.py:one_more", "--set", "id=first")
    for run, done in (("second", 2), ("third", 3)):
        resumed = runfold.ok("resume", "first", "--set", f"id={run}", "-o", "json")
        assert f"{run} continues first" in resumed.err
        assert resumed.document["return_value"] == done, "the run before it went on in the same storage"
    told = " ".join(runfold.ok("resume", "--help").out.split())
    assert "the newest committed checkpoint in that storage" in told
    assert "where a later run has gone on in the same storage, the last one of that" in told
    assert "follow it until it ends" in told
