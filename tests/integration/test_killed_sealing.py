"""Whoever seals a checkpoint is killed before each of its calls to the storage: a whole checkpoint, or none."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import runfold
from runfold.events.transitions import CheckpointCommitted
from runfold.replay.source import load
from runfold.workers.layout import MANIFEST, Manifest, StorageSpec
from runfold.workers.storage import open_storage
from support.commands import COMMAND_TIMEOUT_S, Commands
from support.deadly import KEEPER, RUNNER, DeadlyFiles
from support.waiting import until_seen

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS = {
    "looking for a seal": 0,
    "listing the files": 1,
    "reading the part of rank 0": 2,
    "reading the part of rank 1": 3,
    "writing the manifest": 4,
    "once it is written": 5,
    "listing the parts": 6,
    "removing the part of rank 0": 7,
    "removing the part of rank 1": 8,
}
"""What the keeper does about a checkpoint, in this order."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A service for all of it."""
    commands = Commands(tmp_path_factory.mktemp("sealing"))
    with pytest.MonkeyPatch.context() as patched:
        # A filesystem of one's own is imported where it is used.
        path = [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        patched.setenv("PYTHONPATH", os.pathsep.join(path))
        with commands.service("--slots", "2"):
            yield commands
    commands.end()


def saves(config: dict[str, str]) -> int:
    """Every rank saves three times, from where the last checkpoint left off; it waits for what is to happen."""
    context = runfold.get_context()
    rank, first, marks = context.get_world_rank(), 0, Path(config["marks"])
    checkpoint = runfold.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = int(Path(folder, f"state-{rank}").read_text()) + 1
    for step in range(first, 3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"state-{rank}").write_text(str(step))
            runfold.report({"step": step}, checkpoint=runfold.Checkpoint.from_directory(folder))
        while config["wait"] and step == 1 and not (marks / "killed").exists():
            time.sleep(0.01)
        if config["wait"] == RUNNER and step == 1 and context.get_attempt() == 1:
            signal.pause()  # it is about to go with its runner
        runfold.barrier()
    return first


def trainer(up: Commands, folder: Path, victim: str, at: int, *, held: bool = False) -> runfold.Trainer:
    """A trainer whose second checkpoint is deadly to seal."""
    for name in ("files", "marks"):
        (folder / name).mkdir()
    marks = str(folder / "marks")
    return runfold.Trainer(
        saves,
        train_loop_config={"marks": marks, "wait": "" if held else victim},
        scaling_config=runfold.ScalingConfig(num_workers=2),
        run_config=runfold.RunConfig(
            name=folder.name,
            data_dir=up.data,
            storage_filesystem=DeadlyFiles(str(folder / "files"), marks, victim, at, held),
            storage_path="runs",
            failure_config=runfold.FailureConfig(max_failures=1),
        ),
    )


def committed(up: Commands, run: str) -> list[str]:
    """What was committed, in order, once the run's archive is closed."""
    until_seen((up.data / "archive" / run / "last.json").exists, COMMAND_TIMEOUT_S)
    said = [item for entry in load(run, data_dir=up.data).entries for item in entry.transitions]
    return [item.name for item in said if isinstance(item, CheckpointCommitted)]


def listed(folder: Path) -> list[str]:
    """The checkpoints that are there; every one must be whole."""
    storage = open_storage(StorageSpec(url=str(folder / "files" / "runs"), name=folder.name))
    names = [name for name in storage.files.folders(storage.root) if name.startswith("checkpoint_")]
    for name in names:
        manifest = msgspec.json.decode(storage.files.read(storage.inner(name, MANIFEST)), type=Manifest)
        assert [file.path for file in manifest.files] == ["state-0", "state-1"]
        for file in manifest.files:
            assert storage.files.digest(storage.path(f"{name}/{file.path}")) == (file.size, file.sha256)
    return names


@pytest.mark.parametrize("victim", [KEEPER, RUNNER])
@pytest.mark.parametrize("at", CALLS.values(), ids=[name.replace(" ", "-") for name in CALLS])
def test_what_a_killed_one_was_sealing_is_sealed_by_the_next(
    up: Commands, tmp_path: Path, victim: str, at: int
) -> None:
    result = trainer(up, tmp_path, victim, at).fit()
    assert (tmp_path / "marks" / "killed").exists()
    lost = victim == RUNNER
    assert (result.state, result.attempts) == ("finished", 2 if lost else 1)
    names = committed(up, result.run)
    assert names == ["checkpoint_000000_1", "checkpoint_000001_1", f"checkpoint_000002_{2 if lost else 1}"]
    assert listed(tmp_path) == names
    # The checkpoint that the lost runner was sealing is what the next attempt begins from.
    assert result.return_value == (2 if lost else 0)


def test_the_last_checkpoint_of_a_runner_that_is_lost_when_its_ranks_have_returned_is_sealed_all_the_same(
    up: Commands, tmp_path: Path
) -> None:
    training = trainer(up, tmp_path, RUNNER, CALLS["reading the part of rank 1"], held=True)
    with ThreadPoolExecutor(1) as threads:
        fitting = threads.submit(training.fit)
        try:
            until_seen(lambda: fitting.done() or (tmp_path / "marks" / "held").exists(), COMMAND_TIMEOUT_S)
            until_seen(lambda: fitting.done() or phases(up, training.run_id) == {"returned"}, COMMAND_TIMEOUT_S)
            os.kill(int((tmp_path / "marks" / "held").read_text()), signal.SIGKILL)
            result = fitting.result(COMMAND_TIMEOUT_S)
        finally:
            if not fitting.done():
                up("abort", training.run_id)  # else it would be waited for without an end
    assert (result.state, result.attempts, result.return_value) == ("finished", 1, 0)
    names = [f"checkpoint_{index:06d}_1" for index in range(3)]
    assert committed(up, result.run) == listed(tmp_path) == names


def phases(up: Commands, run: str) -> set[str]:
    """What the ranks of a run are said to do."""
    ranks = up.status(run)["ranks"]
    assert isinstance(ranks, list)
    return {rank["phase"] for rank in ranks}
