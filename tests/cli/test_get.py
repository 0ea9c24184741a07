"""`get` shows where what a run has saved is: on the service, and from the archive alone."""

from __future__ import annotations

from support.commands import Commands

SAVING = """
import tempfile
from pathlib import Path

import runfold


def saves():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "weights").write_text("1")
        runfold.report({"loss": 0.5}, checkpoint=runfold.Checkpoint.from_directory(folder))


def reports():
    runfold.report({"loss": 0.5})
"""


def test_the_last_checkpoint_and_the_storage_are_named(runfold: Commands) -> None:
    runfold.write("jobs.py", SAVING)
    elsewhere = runfold.folder / "elsewhere"
    settings = ("--set", f"storage_path={elsewhere}")
    with runfold.service("--slots", "2"):
        found = runfold.ok("run", "jobs.py:saves", "--name", "digits", "-o", "json", *settings).document
        run, checkpoint = str(found["run"]), found["checkpoint"]
        lines = runfold.ok("get", run).out.splitlines()
        assert f"  checkpoint: {checkpoint} (report 0, attempt 1)" in lines
        assert f"  storage: {elsewhere / 'digits'}" in lines
        assert (elsewhere / "digits" / str(checkpoint)).is_dir()
        here = str(runfold.ok("run", "jobs.py:saves", "-o", "json").document["run"])
        assert f"  storage: {runfold.data / 'storage' / here}" in runfold.ok("get", here).out.splitlines()
        bare = str(runfold.ok("run", "jobs.py:reports", "-o", "json").document["run"])
        assert "checkpoint: " not in runfold.ok("get", bare).out
        for one in (run, here):
            runfold.until_archived(one)
    for one in (run, here):
        archived = runfold.ok("get", one).out
        assert "  checkpoint: " in archived
        assert "  storage: " in archived
