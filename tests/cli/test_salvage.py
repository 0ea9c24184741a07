"""kill -9 of a one-shot run loses nothing that was acknowledged: it is archived meanwhile, and salvaged afterwards."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import psutil

from support.commands import COMMAND_TIMEOUT_S, Commands

if TYPE_CHECKING:
    from pathlib import Path

TRAINING = """
import time
from pathlib import Path

import runfold


def steps(config):
    Path(config["started"]).open("a").write("x")
    index = 0
    while not Path(config["enough"]).exists():
        runfold.report({"index": index})
        index += 1
        time.sleep(0.05)
"""


def begun(user: Commands) -> tuple[subprocess.Popen[str], str]:
    """A one-shot run, once a part of it is archived."""
    user.write("jobs.py", TRAINING)
    config = [f"config.started={user.folder / 'started'}", f"config.enough={user.folder / 'enough'}"]
    process = user.start("run", "jobs.py:steps", *(word for one in config for word in ("--set", one)))
    segments: list[Path] = []
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while len(segments) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
        segments = list(user.data.glob("archive/*/segments/*"))
    return process, segments[0].parts[-3]


def killed(process: subprocess.Popen[str]) -> None:
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(family, timeout=COMMAND_TIMEOUT_S)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


def test_a_killed_run_is_kept_and_salvaged(runfold: Commands) -> None:
    process, run = begun(runfold)
    assert "is under way" in runfold("salvage", run).err
    killed(process)
    assert "index" in runfold.ok("replay", run).out, "what was archived meanwhile is read"
    assert runfold.ok("get", run, "-o", "json").document["state"] == "running"
    early = runfold("resume", run)
    assert (early.code, f"runfold salvage {run}" in early.err) == (2, True)
    (listed,) = [line for line in runfold.ok("ls").out.splitlines() if line.startswith(run)]
    assert "killed" in listed
    doctor = runfold("doctor")
    assert f"runfold salvage {run}" in doctor.out
    assert "remove it" not in doctor.out
    seen = len(runfold.ok("export", run).out.splitlines())
    done = runfold.ok("salvage")
    assert f"{run}: aborted" in done.out
    assert not (runfold.data / "once" / run).exists()
    assert len(runfold.ok("export", run).out.splitlines()) > seen
    assert runfold.ok("get", run, "-o", "json").document["state"] == "aborted"
    runfold.ok("audit", run)
    assert (runfold.folder / "started").read_text() == "x", "the user's code was not run again"
    assert "left behind" not in runfold("doctor").out
    assert "no one-shot run was killed" in runfold.ok("salvage").err
    (runfold.folder / "enough").touch()
    assert runfold("resume", run).code == 0


def test_what_was_never_accepted_is_cleared_away(runfold: Commands) -> None:
    folder = runfold.data / "once" / "early-1"
    folder.mkdir(parents=True)
    assert "had not been accepted" in runfold.ok("salvage", "early-1").out
    assert not folder.exists()
    missing = runfold("salvage", "early-1")
    assert missing.code == 4
    assert "nothing was left behind" in missing.err
