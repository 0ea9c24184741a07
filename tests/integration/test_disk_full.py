"""A disk that is full: said to whoever asks, waited for, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runfold.brokerhealth import broker_trouble
from runfold.events.nats.files import read_connection
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.waiting import ASK_EVERY_S, until_seen

TRAINING = """
import time
from pathlib import Path

import runfold


def steps(config):
    index = 0
    while not Path(config["enough"]).exists():
        runfold.report({"index": index})
        index += 1
        time.sleep(0.05)
    return index
"""
FILLED_AT_ONCE_BYTES = 64 * 1024
PATIENCE_S = 60.0
IMPORT_S = 12.0
FULL_S = 26.0
"""More than twice as long as a group has to import."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small file system is not allowed here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> Path:
    """Leave no room."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"x" * FILLED_AT_ONCE_BYTES)
            except OSError:
                return filler


def test_a_full_disk_is_told_and_waited_for(runfold: Commands, small: Path, tmp_path: Path) -> None:
    runfold.data = small / "data"
    enough = tmp_path / "enough"
    runfold.write("jobs.py", TRAINING)

    def until(what: str, said: str = "", index: int = -2) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            got = runfold.ok("get", run, "-o", "json")
            document = got.document
            ranks = document["ranks"]
            assert isinstance(ranks, list)
            if said in got.err and (not ranks or ranks[0]["index"] > index) and document["state"] == what:
                return
            if time.monotonic() > deadline:
                pytest.fail(f"never {what} {said} {index}: {document} {got.err}")

    with runfold.service() as up:
        run = runfold.submit("jobs.py:steps", "--set", f"config.enough={enough}")
        until("running", index=5)
        filler = fill(small)
        until("running", said="no space left on device")
        # Large enough not to fit into what is left of a page.
        refused = runfold("submit", "jobs.py:steps", "--set", f"config.enough={'x' * 16_384}")
        assert refused.code == 5
        assert "no space left on device" in refused.err
        before = runfold.ok("get", run, "-o", "json").document["ranks"][0]["index"]  # type: ignore[index]  # a list
        filler.unlink()
        until("running", index=before + 20)
        enough.write_text("")
        status = runfold.ended(run)
        assert (status["state"], status["attempt"]) == ("finished", 1)
        assert status["ranks"][0]["index"] == status["return_value"] - 1  # type: ignore[index,operator]  # numbers
        runfold.ok("audit", run)
        runfold.ok("verify", run)
        said = up.stop()
    assert "the broker cannot store anything" in said
    assert "starting it again" in said


def test_a_broker_that_ends_on_a_full_disk_is_started_again_on_it(runfold: Commands, small: Path) -> None:
    """All that a start needs stands there already; what it would write anew is left as it is, or written over."""
    runfold.data = small / "data"
    runfold.write("noisy.py", NOISY)

    def until_said(process: int, said: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            got = runfold.ok("get", run, "-o", "json")
            file = read_connection(runfold.data)
            assert file is not None
            if file.pids["broker"] != process and said in got.err:
                return
            assert time.monotonic() < deadline, got.err

    with runfold.service("--slots", "1") as up:
        run = runfold.submit("noisy.py:talks")
        watching = runfold.start("watch", run)
        assert watching.stdout is not None
        while " running " not in watching.stdout.readline():
            assert watching.poll() is None
        filler = fill(small)
        for _ in range(2):
            file = read_connection(runfold.data)
            assert file is not None
            os.kill(file.pids["broker"], signal.SIGKILL)
            until_said(file.pids["broker"], "no space left on device")
        filler.unlink()
        (runfold.folder / "enough").touch()
        out, err = watching.communicate(timeout=COMMAND_TIMEOUT_S)
        assert watching.returncode == 0, (out, err)
        runfold.ok("audit", run)
        said = up.stop()
    assert "the broker ended unexpectedly" in said
    assert "not started" not in said
    assert "cannot be used" not in said


SLOW_TO_LOAD = """
import time
from pathlib import Path

while not Path("load").exists():
    time.sleep(0.05)


def train():
    return "trained"
"""
NOISY = """
import time
from pathlib import Path

import runfold


def talks():
    while not Path("enough").exists():
        runfold.report({"much": "x" * 8000})
        time.sleep(0.05)
"""


def test_a_disk_that_is_full_while_a_group_starts_costs_no_failure(
    runfold: Commands, small: Path, tmp_path: Path
) -> None:
    """Ranks that are ready cannot say so: that is waited for, far beyond the time that they have to import."""
    runfold.data = small / "data"
    runfold.write("slow.py", SLOW_TO_LOAD)
    runfold.write("noisy.py", NOISY)
    settings = (f"timeouts.import_timeout_s={IMPORT_S}", "failure.controller_failure_limit=0")
    patience = [word for setting in settings for word in ("--set", setting)]

    def trouble() -> str | None:
        """What the broker says of itself: asked here, since the time to import goes on until it is full."""
        file = read_connection(runfold.data)
        return None if file is None else asyncio.run(broker_trouble(file.monitor))

    with runfold.service("--slots", "2") as up:
        noisy = runfold.submit("noisy.py:talks")
        runfold.reaches(noisy, "running")
        run = runfold.submit("slow.py:train", *patience)
        watching = [runfold.start("watch", each) for each in (run, noisy)]
        runfold.until(run, lambda status: "import_timeout_s" in str(status["timeouts"]))
        filler = fill(small)
        until_seen(lambda: "no space left on device" in (trouble() or ""))
        (tmp_path / "load").touch()
        full_until = time.monotonic() + FULL_S
        while time.monotonic() < full_until:
            # Which stream fails first is chance: the last words may still find room in a page that was begun.
            status = runfold.status(run)
            assert (status["state"] != "errored", status["attempt"]) == (True, 1)
            time.sleep(ASK_EVERY_S)
        filler.unlink()
        (tmp_path / "enough").touch()
        for process in watching:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
            assert process.returncode == 0, (out, err, runfold("replay", run, "--full").out)
            assert " finished in " in out
        ended = runfold.ended(run)
        assert (ended["state"], ended["attempt"], ended["return_value"]) == ("finished", 1, "trained")
        up.stop()
