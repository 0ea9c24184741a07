"""Local mode (`num_workers=0`): in this process, and yet the calls, the log and the result of any run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import runfold
from runfold.replay.archive import archive_path
from runfold.replay.audit import audit
from runfold.replay.source import load
from runfold.replay.verify import verify
from runfold.workers.errors import StorageError
from support.commands import Commands

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = runfold.ScalingConfig(num_workers=0)
FINISHED = ["initializing", "scheduling", "running", "shutting_down", "finished"]


def trainer(data: Path, function: Callable[..., object] | str, workers: int = 0, **config: object) -> runfold.Trainer:
    more = {name: config.pop(name) for name in ("validation_config", "datasets", "train_loop_config") if name in config}
    return runfold.Trainer(
        function,
        scaling_config=runfold.ScalingConfig(num_workers=workers),
        run_config=runfold.RunConfig(data_dir=data, **{"name": "here", **config}),  # type: ignore[arg-type]  # as given
        **more,  # type: ignore[arg-type]  # as given
    )


def told(data: Path, run: str) -> tuple[list[str], list[str]]:
    """The kinds of transitions in a run's log, and the states it came through; it is sound, and decided alike again."""
    history = load(archive_path(data, run))
    assert audit(history).findings == ()
    assert verify(history).outcome == "agrees"
    transitions = [item for entry in history.entries for item in entry.transitions]
    states = [str(getattr(item, "to_state", "")) for item in transitions if type(item).__name__ == "StateChanged"]
    return [type(item).__name__ for item in transitions], states


def saves(config: dict[str, object]) -> dict[str, object]:
    context = runfold.get_context()
    for step in range(3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state").write_text(str(step))
            runfold.report(
                {"loss": 1.0 / (step + 1), "step": step}, checkpoint=runfold.Checkpoint.from_directory(folder)
            )
    runfold.barrier()
    return {
        "pid": os.getpid() if config["say_pid"] else 0,
        "world": [context.get_world_size(), context.get_world_rank(), context.get_attempt()],
        "gathered": runfold.all_gather(7),
        "run": os.environ["RUNFOLD_RUN"] == context.get_run_id(),
        "env": os.environ["MODE"],
    }


def test_the_log_and_the_result_are_those_of_a_run_of_one_rank(tmp_path: Path) -> None:
    given: dict[str, object] = {"train_loop_config": {"say_pid": False}, "env": {"MODE": "x"}}
    mine = trainer(tmp_path, saves, 0, name="w0", **given).fit()
    other = trainer(tmp_path, saves, 1, name="w1", **given).fit()
    assert mine.return_value == other.return_value
    assert (mine.state, mine.attempts, mine.metrics) == (other.state, other.attempts, other.metrics)
    assert mine.metrics_dataframe["loss"].tolist() == other.metrics_dataframe["loss"].tolist()
    assert [Path(one.path).name for one, _ in mine.best_checkpoints] == [
        Path(one.path).name for one, _ in other.best_checkpoints
    ]
    kinds, states = told(tmp_path, mine.run)
    assert states == told(tmp_path, other.run)[1]
    assert sorted(set(kinds)) == sorted(set(told(tmp_path, other.run)[0]))
    assert "MODE" not in os.environ
    assert "RUNFOLD_RUN" not in os.environ
    assert runfold.get_result(mine.run, data=tmp_path) == mine
    assert runfold.Result.from_path(str(mine.path)).return_value == mine.return_value


def test_it_is_this_process_and_its_objects(tmp_path: Path) -> None:
    marker = object()
    seen: list[int] = []

    def train() -> object:
        seen.append(os.getpid())
        return marker

    result = trainer(tmp_path, train).fit()
    assert result.return_value is marker
    assert seen == [os.getpid()]


def raises() -> None:
    runfold.report({"loss": 0.5})
    raise KeyError("not there")


def test_errors_are_raised_as_they_are_not_tried_again_and_told_by_the_log(tmp_path: Path) -> None:
    run = trainer(tmp_path, raises, failure_config=runfold.FailureConfig(max_failures=3))
    with pytest.raises(KeyError, match="not there") as caught:
        run.fit()
    assert any(f"runfold replay {run.run_id}" in note for note in caught.value.__notes__)
    notes = " ".join(caught.value.__notes__)
    assert f"--data {tmp_path}" in notes
    assert "local mode" in notes
    assert "max_failures = 0" not in notes
    kinds, states = told(tmp_path, run.run_id)
    assert states[-2:] == ["shutting_down", "errored"]
    assert kinds.count("AttemptStarted") == 1
    result = runfold.get_result(run.run_id, data=tmp_path)
    assert (result.state, result.metrics) == ("errored", {"loss": 0.5})
    assert "KeyError" in str(result.error)
    with pytest.raises(RuntimeError, match="training function"):
        runfold.report({"loss": 1.0})


def test_a_storage_that_cannot_be_had_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    run = trainer(tmp_path, raises, storage_path="/proc/nope")
    with pytest.raises(StorageError, match="/proc/nope cannot be written: No such file or directory"):
        run.fit()
    assert told(tmp_path, run.run_id)[1][-1] == "errored"
    with pytest.raises(runfold.TrainingFailedError, match="StorageError: storage /proc/nope"):
        trainer(tmp_path, raises, 1, storage_path="/proc/nope").fit()


def test_what_cannot_be_loaded_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import no_such_module\ndef train(): pass\n")
    run = trainer(tmp_path, f"{tmp_path}/job.py:train")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        run.fit()
    history = load(archive_path(tmp_path, run.run_id))
    failure = next(item for entry in history.entries for item in entry.inputs if type(item).__name__ == "RankFailed")
    assert getattr(failure, "error").kind == "load"  # noqa: B009  # told by its name above


def interrupts() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_aborts(tmp_path: Path) -> None:
    run = trainer(tmp_path, interrupts)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert told(tmp_path, run.run_id)[1][-1] == "aborted"
    assert runfold.get_result(run.run_id, data=tmp_path).state == "aborted"


def goes_on() -> list[object]:
    shard = runfold.get_dataset_shard("train")
    checkpoint = runfold.get_checkpoint()
    rows: list[object] = []
    for row in shard:
        rows.append(row)
        if len(rows) == 2 and checkpoint is None:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "state").write_text("2")
                runfold.report({"rows": 2}, checkpoint=runfold.Checkpoint.from_directory(folder))
            break
    return [None if checkpoint is None else Path(checkpoint.path).name, rows]


def test_the_same_name_goes_on_where_it_was_also_in_its_data(tmp_path: Path) -> None:
    data = {"train": list(range(5))}
    assert trainer(tmp_path, goes_on, datasets=data).fit().return_value == [None, [0, 1]]
    assert trainer(tmp_path, goes_on, datasets=data).fit().return_value == ["checkpoint_000000_1", [2, 3, 4]]
    # A run of real ranks goes on with what was begun here.
    assert trainer(tmp_path, goes_on, 1, datasets=data).fit().return_value == ["checkpoint_000000_1", [2, 3, 4]]


def judged(checkpoint: runfold.Checkpoint, scale: float) -> dict[str, float]:
    with checkpoint.as_directory() as folder:
        return {"score": scale * float(Path(folder, "state").read_text())}


def asks() -> list[object]:
    for step in range(2):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state").write_text(str(step))
            runfold.report({"loss": 1.0}, checkpoint=runfold.Checkpoint.from_directory(folder), validation=True)
    return [[one.status, one.metrics["score"]] for one in runfold.get_all_reported_checkpoints()]


def test_checkpoints_are_validated(tmp_path: Path) -> None:
    validation = runfold.ValidationConfig(
        fn=judged, task_config=runfold.ValidationTaskConfig(fn_kwargs={"scale": 10.0})
    )
    assert trainer(tmp_path, asks, validation_config=validation).fit().return_value == [
        ["validated", 0.0],
        ["validated", 10.0],
    ]


class Listens(runfold.UserCallback):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_event(self, happening: object) -> None:
        self.heard.append(str(getattr(happening, "hook", "")))


def test_callbacks_are_told(tmp_path: Path) -> None:
    callback = Listens()
    trainer(tmp_path, saves, train_loop_config={"say_pid": True}, env={"MODE": "y"}, callbacks=[callback]).fit()
    assert callback.heard[-1] == "after_controller_finish"
    assert callback.heard.count("after_report") == 3


def test_the_command_line_knows_it(tmp_path: Path) -> None:
    run = trainer(tmp_path, saves, train_loop_config={"say_pid": False}, env={"MODE": "x"})
    run.fit()
    commands = Commands(tmp_path)
    for command in ("get", "verify", "audit", "replay"):
        commands.ok(command, run.run_id, "--data", str(tmp_path))
