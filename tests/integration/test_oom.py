"""Memory that is not there: the kernel ends a validation, or a rank, in a control group that is really too small."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from runfold.events.transitions import CheckpointValidated, FailureDecided, StateChanged
from runfold.replay.source import load
from support import beside
from support.commands import COMMAND_TIMEOUT_S, RUNFOLD, Commands
from support.memory import limited_memory, within

if TYPE_CHECKING:
    from runfold.replay.history import History

pytest_plugins = ["support.commands"]
LIMIT_BYTES = 1 << 30
HUNGRY = """
import os
def train(config):
    return len([os.urandom(1 << 20) for _ in range(4096)])
"""


def run_limited(runfold: Commands, *words: str) -> History:
    """Run all of a run, its broker, controller and supervisor too, in one such group; return its log."""
    with limited_memory(LIMIT_BYTES) as group:
        done = subprocess.run(
            within(group, str(RUNFOLD), "run", *words, "--set", "id=limited", "-o", "json"),
            cwd=runfold.folder,
            env=runfold.environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    assert (runfold.data / "archive" / "limited" / "last.json").exists(), done.stderr
    return load("limited", data_dir=runfold.data)


def test_a_validation_that_the_kernel_ends_for_its_memory_is_a_status_and_training_never_notices(
    runfold: Commands,
) -> None:
    runfold.write("given.py", Path(beside.__file__).read_text(encoding="utf-8"))
    history = run_limited(
        runfold,
        "given.py:train_and_validate",
        *("--set", "validation.entrypoint=given.py:validate", "--set", "config.ways=hungry well"),
    )
    said = [item for entry in history.entries for item in entry.transitions]
    validated = {item.name: item for item in said if isinstance(item, CheckpointValidated)}
    hungry, well = validated["checkpoint_000000_1"], validated["checkpoint_000001_1"]
    assert (hungry.outcome, well.outcome) == ("failed", "validated")
    assert hungry.error is not None
    assert (hungry.error.kind, hungry.error.type) == ("oom", "OutOfMemory")
    assert "OutOfMemory: its process ended by signal 9 (SIGKILL)" in hungry.reason
    assert [item for item in said if isinstance(item, FailureDecided)] == []
    assert [item.next for item in said if isinstance(item, StateChanged) and item.next] == ["finished"]


def test_a_rank_that_the_kernel_ends_for_its_memory_is_told_so(runfold: Commands) -> None:
    runfold.write("hungry.py", HUNGRY)
    history = run_limited(runfold, "hungry.py:train")
    said = [item for entry in history.entries for item in entry.transitions]
    assert [item.failure.kind for item in said if isinstance(item, FailureDecided)] == ["oom"]
