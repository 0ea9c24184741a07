"""A service whose processes are killed under a run that trains: each is started again, the run knows nothing of it."""

from __future__ import annotations

import json
import time

import psutil
import pytest

from support.commands import COMMAND_TIMEOUT_S, Commands
from support.waiting import until_seen

TRAINING = """
import time
from pathlib import Path

import runfold


def steps(config):
    index = 0
    while not runfold.broadcast_from_rank_zero(Path(config["enough"]).exists()):
        runfold.report({"index": index})
        index += 1
        time.sleep(0.02)
    return index
"""
PATIENCE_S = 90.0


def pids(runfold: Commands) -> dict[str, int]:
    """Who runs, as connection.json tells it."""
    found = json.loads((runfold.data / "connection.json").read_text())["pids"]
    assert isinstance(found, dict)
    return found


def written_anew(runfold: Commands, role: str, before: int) -> None:
    """Wait until another process is written down: the run goes on before that."""
    until_seen(lambda: pids(runfold)[role] != before, COMMAND_TIMEOUT_S)


def reported(runfold: Commands, run: str) -> tuple[int, dict[str, object]]:
    """The index of the last report that is folded, and the status."""
    status = runfold.ok("get", run, "-o", "json").document
    ranks = status["ranks"]
    assert isinstance(ranks, list)
    return min((rank["index"] for rank in ranks), default=-1), status


def goes_on(runfold: Commands, run: str, beyond: int) -> int:
    """Wait until reports beyond an index are folded; return the index."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        index, status = reported(runfold, run)
        assert (status["state"], status["attempt"]) in {("running", 1), ("scheduling", 1)}
        if index > beyond:
            return index
    pytest.fail(f"{run} made no progress beyond report {beyond} within {PATIENCE_S:g} s")


def test_killed_controllers_and_brokers_cost_a_run_nothing(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    enough = runfold.folder / "enough"
    with runfold.service("--controllers", "2") as up:
        first = json.loads((runfold.data / "connection.json").read_text())
        run = runfold.submit("jobs.py:steps", "--workers", "2", "--set", f"config.enough={enough}")
        index = goes_on(runfold, run, 10)
        for role in ("controller", "broker", "controller-1", "controller"):
            before = pids(runfold)
            psutil.Process(before[role]).kill()
            index = goes_on(runfold, run, index + 100)
            written_anew(runfold, role, before[role])
            assert all(psutil.pid_exists(pid) for pid in pids(runfold).values())
        now = json.loads((runfold.data / "connection.json").read_text())
        assert (now["server"], now["url"], now["roles"]) == (first["server"], first["url"], first["roles"])
        enough.write_text("")
        assert runfold.ended(run)["state"] == "finished"
        index, status = reported(runfold, run)
        assert status["return_value"] == index + 1
        assert runfold("audit", run).code == 0
        assert runfold("verify", run).code == 0
        up.pids = pids(runfold)
        said = up.stop()
    for role in ("the controller ended unexpectedly", "the controller-1 ended", "the broker ended unexpectedly"):
        assert role in said
    assert "starting it again" in said
