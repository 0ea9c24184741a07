"""README and docs/: every block that can be typed is run; what cannot is marked `text`."""

from __future__ import annotations

import shutil
import subprocess
import sys

import msgspec
import pytest

from runfold.events.job import decode_job
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.documents import Block, blocks, commands
from support.sources import ROOT

SHELL = ("sh", "bash", "console")


def documented(*languages: str) -> list[object]:
    found = [block for block in blocks(*languages) if block.place.startswith(("README.md", "docs/"))]
    return [pytest.param(block, id=block.place) for block in found]


@pytest.mark.parametrize("block", documented("python"))
def test_python_blocks_run(runfold: Commands, block: Block) -> None:
    script = runfold.write("block.py", block.body)
    done = subprocess.run(
        [sys.executable, "-P", script],
        cwd=runfold.folder,
        env=runfold.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", documented(*SHELL))
def test_shell_blocks_run_beside_a_service(served: Commands, block: Block) -> None:
    """Lines of `make` are left out here: their targets are looked up elsewhere, and the demo has a test of its own."""
    shutil.copytree(ROOT / "examples", served.folder / "examples", dirs_exist_ok=True)
    for words in commands(block):
        if words[0] == "make":
            continue
        assert words[0] == "runfold", f"{block.place}: {words[0]} cannot be run by a test: mark the block `text`"
        served.ok(*words[1:])


def test_toml_blocks_of_jobs_are_jobs_or_parts_of_one() -> None:
    found = [block for block in blocks("toml") if "entrypoint =" in block.body or "[hooks]" in block.body]
    assert len(found) > 2
    for block in found:
        check_job_file(block)


def check_job_file(block: Block) -> None:
    fields = {"entrypoint": "train.py:train", **msgspec.toml.decode(block.body, type=dict[str, object])}
    decode_job(msgspec.json.encode(fields))


def test_the_demo_trains_well_and_tells_its_story(runfold: Commands) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        cwd=runfold.folder,
        env=runfold.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = [line.partition("accuracy=")[2] for line in done.stdout.splitlines() if "last metrics:" in line]
    assert len(accuracies) == 2
    assert all(float(accuracy) >= 0.95 for accuracy in accuracies)
    story = done.stdout.partition("$ runfold replay")[2]
    assert "RUNNING → RESTARTING" in story
    assert "rank 1 was told to fail in epoch 4" in story
    assert "worker 1 of 1, 0 left" in story
