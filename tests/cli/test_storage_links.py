"""One directory under two names: a second live run there is refused at once, and touches nothing of the first's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.commands import Commands

TRAINING = """
import tempfile
import time
from pathlib import Path

import runfold


def saves(config):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "state").write_text("1")
        runfold.report({"a": 1}, checkpoint=runfold.Checkpoint.from_directory(folder))
    while not Path(config["enough"]).exists():
        time.sleep(0.05)
"""


def test_a_second_run_in_a_directory_by_the_name_of_a_link_is_refused(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    real, linked = runfold.folder / "real", runfold.folder / "linked"
    real.mkdir()
    linked.symlink_to(real)
    (real / "other").symlink_to(real / "digits")
    words = ("submit", "jobs.py:saves", "--set", f"config.enough={runfold.folder / 'enough'}")
    with runfold.service("--slots", "2"):
        runfold.submit(*words[1:], "--set", "id=first", "--set", f"storage_path={real}", "--set", "storage_name=digits")
        for where, name in ((linked, "digits"), (f"file://{linked}", "digits"), (real, "other")):
            second = runfold(*words, "--follow", "--set", f"storage_path={where}", "--set", f"storage_name={name}")
            assert second.code == 2, second.err
            assert "run 'first' writes to" in second.err
        (runfold.folder / "enough").touch()
        assert runfold.ended("first")["state"] == "finished"
        again = (*words, "--set", "id=second", "--set", f"storage_path={linked}", "--set", "storage_name=digits")
        runfold.ok(*again, "--follow")
