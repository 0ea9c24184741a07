"""kill -9 of a one-shot run loses nothing that was acknowledged: it is archived meanwhile, and salvaged afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest

from runfold.replay.errors import ReplayError
from runfold.replay.source import load
from runfold.runs import archived_status
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.processes import gone, under
from support.waiting import until_seen

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
    """A one-shot run, once some of what it reported is archived."""
    user.write("jobs.py", TRAINING)
    config = [f"config.started={user.folder / 'started'}", f"config.enough={user.folder / 'enough'}"]
    process = user.start("run", "jobs.py:steps", *(word for one in config for word in ("--set", one)))

    def archived() -> str | None:
        assert process.poll() is None, process.communicate()
        for folder in user.data.glob("archive/*"):
            try:
                status = archived_status(load(folder.name, data_dir=user.data))
            except ReplayError:
                continue
            if status.state == "running" and status.ranks[0].index > 0:
                return folder.name
        return None

    until_seen(lambda: archived() is not None, COMMAND_TIMEOUT_S)
    return process, str(archived())


def killed(process: subprocess.Popen[str]) -> None:
    family = under(psutil.Process(process.pid))
    process.kill()
    process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert gone(family) == []


def test_a_killed_run_is_kept_and_salvaged(runfold: Commands) -> None:
    process, run = begun(runfold)
    assert "is under way" in runfold("salvage", run).err
    assert "salvage" not in runfold.ok("ls").err
    killed(process)
    replayed = runfold.ok("replay", run)
    assert "index" in replayed.out, "what was archived meanwhile is read"
    got = runfold.ok("get", run, "-o", "json")
    assert got.document["state"] == "running"
    early = runfold("resume", run)
    assert early.code == 2
    listing = runfold.ok("ls")
    (listed,) = [line for line in listing.out.splitlines() if line.startswith(run)]
    assert "killed" in listed
    for told in (replayed, got, early, listing):
        assert f"{run} was killed: `runfold salvage {run}`" in told.err
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


def test_the_next_run_clears_away_what_killed_ones_left(runfold: Commands) -> None:
    process, run = begun(runfold)
    killed(process)
    (runfold.data / "once" / "early-1").mkdir()
    (runfold.folder / "enough").touch()
    unknown = runfold("get", "early-1")
    assert (unknown.code, "`runfold salvage early-1` archives what is left" in unknown.err) == (4, True)
    config = [f"config.{name}={runfold.folder / name}" for name in ("started", "enough")]
    done = runfold.ok("run", "jobs.py:steps", "--set", config[0], "--set", config[1])
    before, _, after = done.err.partition("early-1: it had not been accepted")
    assert f"2 one-shot runs were killed (early-1, {run}): `runfold salvage`" in before
    assert f"{run}: aborted" in after
    assert list((runfold.data / "once").iterdir()) == []
    assert runfold.ok("get", run, "-o", "json").document["state"] == "aborted"


def test_a_run_whose_user_asks_for_its_end_twice_is_ended_in_its_log_all_the_same(runfold: Commands) -> None:
    process, run = begun(runfold)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    while "once more to stop at once" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == 3, err
    assert list((runfold.data / "once").iterdir()) == []
    runfold.ok("audit", run)
    assert runfold.ok("get", run, "-o", "json").document["state"] == "aborted"
    (listed,) = json.loads(runfold.ok("ls", "-o", "json").out)
    assert (listed["where"], "killed" in listed["reason"]) == ("archive", False)


def test_what_was_never_accepted_is_cleared_away(runfold: Commands) -> None:
    folder = runfold.data / "once" / "early-1"
    folder.mkdir(parents=True)
    assert "had not been accepted" in runfold.ok("salvage", "early-1").out
    assert not folder.exists()
    missing = runfold("salvage", "early-1")
    assert missing.code == 4
    assert "nothing was left behind" in missing.err


@pytest.mark.parametrize("name", ["", ".", "..", "../once", "a/b", "{outside}"])
def test_what_is_no_runs_name_is_never_cleared_away(runfold: Commands, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    kept = [outside / "thesis.txt", runfold.data / "once" / "early-1" / "kept.txt"]
    kept[1].parent.mkdir(parents=True)
    for file in kept:
        file.write_text("years of work")
    done = runfold("salvage", name.format(outside=outside))
    assert (done.code, "nothing was left behind" in done.err) == (4, True)
    assert [file.read_text() for file in kept] == ["years of work"] * 2


def test_one_that_cannot_be_salvaged_keeps_nobody_from_the_next(runfold: Commands) -> None:
    once = runfold.data / "once"
    for name in ("broken", "early-1"):
        (once / name).mkdir(parents=True)
    (once / "broken" / "connection.json").write_text("{half")
    (once / "broken" / "broker").write_text("no directory")
    assert "2 one-shot runs were killed (broken, early-1)" in runfold.ok("ls").err
    # What the environment names is another service, not the directory that is cleared up.
    done = runfold("salvage", RUNFOLD_SERVER="nats://127.0.0.1:9")
    assert done.code != 0
    assert "broken was killed, and could not be salvaged" in done.err
    assert "1 run could not be salvaged" in done.err
    assert "early-1: it had not been accepted" in done.out
    assert [folder.name for folder in once.iterdir()] == ["broken"]
