"""A bit flips in the broker's log under a run that trains: quarantined, found, restored, and trained to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import psutil
import pytest

from support.commands import Commands, Up

TRAINING = """
import time
from pathlib import Path

import runfold


def steps(config):
    index = 0
    while not runfold.broadcast_from_rank_zero(Path(config["enough"]).exists()):
        runfold.report({"index": index})
        index += 1
        if runfold.get_context().get_world_rank() == 0:
            written = Path(config["alive"] + ".new")
            written.write_text(str(index))
            written.replace(config["alive"])
        time.sleep(0.02)
    return index
"""
PATIENCE_S = 90.0


def status(runfold: Commands, run: str) -> dict[str, object]:
    return runfold.ok("get", run, "-o", "json").document


def index_of(runfold: Commands, run: str) -> int:
    ranks = status(runfold, run)["ranks"]
    assert isinstance(ranks, list)
    return min((rank["index"] for rank in ranks), default=-1)


def wait_for(what: str, held: object) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    assert callable(held)
    while not held():
        if time.monotonic() > deadline:
            pytest.fail(f"never: {what}")
        time.sleep(0.05)


def says(process: subprocess.Popen[str], words: str, *, by_error: bool = False) -> None:
    """Return once a command has said something."""
    stream = process.stderr if by_error else process.stdout
    assert stream is not None
    while words not in (line := stream.readline()):
        assert line, f"it ended before it said {words!r}"


def flip_a_bit(runfold: Commands, up: Up, *, behind: str = "", past: int = 20_000) -> None:
    """Kill the broker, change a byte of an entry that is so far in the file, let the broker be started again.

    `behind` the last entry of another run: a broker that starts on a damaged file drops all that follows, of every run.
    """
    os.kill(up.process.pid, signal.SIGSTOP)
    broker = psutil.Process(up.pids["broker"])
    broker.kill()
    # Its parent stands still, and does not collect it.
    wait_for("the broker's end", lambda: broker.status() == psutil.STATUS_ZOMBIE)
    (block,) = (runfold.data / "broker" / "store").glob("**/RUNFOLD_LOG/msgs/*.blk")
    data = bytearray(block.read_bytes())
    begin = max(data.find(b'"kind":"reported"'), data.rfind(f'"run":"{behind}"'.encode()))
    place = data.find(b'"kind":"reported"', begin + past)
    assert min(begin, place) > 0
    data[place + 10] ^= 1
    block.write_bytes(bytes(data))
    os.kill(up.process.pid, signal.SIGCONT)


def test_a_run_survives_the_damage_of_its_log(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    enough, alive = runfold.folder / "enough", runfold.folder / "alive"
    with runfold.service("--slots", "2") as up:
        config = ("--set", f"config.enough={enough}", "--set", f"config.alive={alive}")
        run = runfold.submit("jobs.py:steps", "--workers", "2", *config)
        runfold.reaches(run, "running")
        other = runfold.submit("jobs.py:steps", "--name", "later", *config)
        runfold.until(other, lambda status: status["waiting"])
        enough_index = index_of(runfold, run) + 300
        wait_for("enough reports", lambda: index_of(runfold, run) > enough_index)
        watching = runfold.start("watch", run)
        says(watching, " running ")
        flip_a_bit(runfold, up, behind=other)
        wait_for("quarantine", lambda: status(runfold, run)["quarantined"] is not None)
        assert status(runfold, other)["quarantined"] is None, "one broken run never affects another"
        assert status(runfold, run)["state"] == "running"
        before = int(alive.read_text())
        wait_for("ranks train on", lambda: int(alive.read_text()) > before + 50)
        checked = runfold("doctor")
        assert checked.code == 1
        assert f"{run} is quarantined" in checked.out
        found = runfold("audit", run)
        assert found.code == 1
        says(watching, f"{run} is quarantined: ", by_error=True)
        asked = runfold("resize", run, "3")
        assert asked.code == 1
        assert "the request stands on the broker, and is looked at then" in asked.err
        restored = runfold.ok("restore", run, "--from", str(runfold.data / "archive" / run))
        assert "restored as generation 2" in restored.out
        index = index_of(runfold, run)
        wait_for("reports folded again", lambda: index_of(runfold, run) > max(index, before))
        assert status(runfold, run)["quarantined"] is None
        assert "refused" in str(status(runfold, run)["requests"]), "of a run of a fixed size"
        enough.write_text("")
        out, err = watching.communicate(timeout=PATIENCE_S)
        assert watching.returncode == 0
        assert f"{run}: its log was restored, it goes on" in err
        assert "returned: " in out
        assert runfold("watch", other).code == 0
        ended = runfold.ended(run)
        assert (ended["state"], ended["attempt"]) == ("finished", 1)
        assert ended["return_value"] == index_of(runfold, run) + 1
        assert runfold("audit", run).code == 0
        assert runfold("verify", run).code == 0
        assert runfold("restore", run, "--from", str(runfold.data / "archive" / run)).code == 1
        said = up.stop()
    assert "the broker ended unexpectedly" in said


def test_the_group_of_a_quarantined_run_is_stopped_by_force(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    enough, alive = runfold.folder / "enough", runfold.folder / "alive"
    with runfold.service("--slots", "2") as up:
        config = ("--set", f"config.enough={enough}", "--set", f"config.alive={alive}")
        run = runfold.submit("jobs.py:steps", "--workers", "2", *config)
        wait_for("enough reports", lambda: index_of(runfold, run) > 300)
        assert runfold("abort", run, "--force", "--reason", "impatient").code == 2
        flip_a_bit(runfold, up)
        wait_for("quarantine", lambda: status(runfold, run)["quarantined"] is not None)
        for words in (("stop", run, "--at-checkpoint"), ("checkpoint", run), ("abort", run, "--reason", "impatient")):
            asked = runfold(*words)
            assert asked.code == 1
            assert f"{run} is quarantined, and nobody decides for it: " in asked.err
            assert f"`runfold restore {run} --from ARCHIVE`" in asked.err
        forced = runfold.ok("abort", run, "--force", "--reason", "cannot wait")
        assert "its group was told to stop, outside the log" in forced.out
        free = runfold.submit("jobs.py:steps", "--workers", "2", *config)
        runfold.reaches(free, "running")  # its slots are free
        enough.write_text("")
        assert runfold("watch", free).code == 0


FEW = """
import runfold


def few():
    for index in range(3):
        runfold.report({"index": index})
"""


def test_runs_whose_logs_a_damaged_store_has_cut_are_told_of_and_brought_back(runfold: Commands) -> None:
    runfold.write("jobs.py", FEW)
    with runfold.service("--slots", "2") as up:
        cut, emptied = [str(runfold.ok("run", "jobs.py:few", "-o", "json").document["run"]) for _ in range(2)]
        for run in (cut, emptied):
            runfold.until_archived(run)
        assert runfold.ok("doctor").code == 0
        flip_a_bit(runfold, up, past=0)
        wait_for("the broker's return", lambda: runfold("ls").code == 0)
        checked = runfold("doctor")
        assert checked.code == 1
        assert "2 known, none quarantined" in checked.out, "nobody appends to a run that has ended"
        head = status(runfold, cut)["head"]
        assert isinstance(head, dict)
        entries = int(head["n"]) + 1
        assert f"the log of {emptied} holds 0 of the " in checked.out
        assert f"of the {entries} entries that it had; its archive has {entries}" in checked.out
        found = runfold("audit", emptied)
        assert found.code == 0
        assert f"the service's log holds nothing of {emptied}" in found.err
        assert str(runfold.data / "archive" / emptied) in found.err
        assert runfold("audit", cut).code == 1
        for run in (cut, emptied):
            runfold.ok("restore", run, "--from", str(runfold.data / "archive" / run))
        assert runfold.ok("doctor").code == 0
        assert runfold.ok("audit", "--all").code == 0


def test_the_archives_of_all_runs_are_audited_too(runfold: Commands) -> None:
    runfold.write("jobs.py", FEW)
    with runfold.service("--slots", "2"):
        run = str(runfold.ok("run", "jobs.py:few", "-o", "json").document["run"])
        runfold.until_archived(run)
        assert runfold.ok("audit", "--all").out.count(run) == 1
        archive = runfold.data / "archive" / run
        segment = next((archive / "segments").glob("*.jsonl.zst"))
        segment.unlink()
        assert runfold("audit", run).code == 0, "its log is whole"
        found = runfold("audit", "--all")
        assert found.code == 1
        assert f"{run}, its archive {archive}: " in found.out
        assert segment.name in found.out
        archive.rename(runfold.folder / "moved away")
        runfold.ok("archive", run, str(archive))
        assert runfold.ok("audit", "--all").code == 0
