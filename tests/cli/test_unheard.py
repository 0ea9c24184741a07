"""Nobody reads on (`runfold run … | head -2`): the run goes on to its end and is archived; what only reads, ends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.commands import COMMAND_TIMEOUT_S, RUNFOLD, Commands
from support.scripts import TRAINING

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
import runfold
from jobs import ok

result = runfold.Trainer(ok, scaling_config=runfold.ScalingConfig(num_workers=1)).fit()
print("the end:", result.state, flush=True)
"""


@pytest.fixture
def user(runfold: Commands) -> Commands:
    runfold.write("jobs.py", TRAINING)
    return runfold


def read_one_line(user: Commands, *words: str | Path, of_errors: bool = False) -> tuple[int, str]:
    """Read one line of a program's output, close it, and return how the program ended and its errors.

    Or the other way round: read one line `of_errors`, close them, and return the output.
    """
    process = subprocess.Popen(
        words,
        cwd=user.folder,
        env=user.environment(PYTHONPATH=str(user.folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    closed, read = (process.stderr, process.stdout) if of_errors else (process.stdout, process.stderr)
    try:
        assert closed.readline()
        closed.close()
        found = read.read()
        return process.wait(COMMAND_TIMEOUT_S), found
    finally:
        process.kill()
        process.wait()


def test_a_run_nobody_looks_at_any_more_goes_on_to_its_end(user: Commands) -> None:
    code, error = read_one_line(user, RUNFOLD, "run", "jobs.py:ok", "--workers", "1")
    assert "Traceback" not in error
    assert code in (0, 141)
    (listed,) = json.loads(user.ok("ls", "-o", "json").out)
    assert listed["state"] == "finished"
    assert list((user.data / "once").iterdir()) == []

    code, error = read_one_line(user, RUNFOLD, "replay", listed["run"])
    assert (code in (0, 141), error) == (True, "")


def test_a_program_of_ones_own_goes_on_too(user: Commands) -> None:
    """`fit` leaves standard output to its caller: its progress is among the errors."""
    code, output = read_one_line(user, sys.executable, user.write("own.py", OWN), of_errors=True)
    assert (code, output) == (0, "the end: finished\n")
    (listed,) = json.loads(user.ok("ls", "-o", "json").out)
    assert listed["state"] == "finished"


def test_what_only_watches_ends_when_nobody_reads_it(user: Commands) -> None:
    with user.service():
        run = user.submit("jobs.py:wait", "--workers", "1")
        for words in (("watch", run), ("watch", run, "-o", "json")):
            code, error = read_one_line(user, RUNFOLD, *words)
            assert (code, error) == (141, "")
        user.ok("abort", run, "--reason", "enough")
