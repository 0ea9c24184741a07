"""Results: from `fit`, from the log alone, from the storage alone, all telling the same; observers on the way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import runfold
from runfold.errors import WorkerGroupError
from runfold.events.values import unpack
from support.beside import saves_and_fails as fails
from support.beside import saves_three as trains
from support.beside import validate
from support.commands import Commands

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["support.commands"]


def fit(folder: Path, function: Callable[..., object], **more: object) -> runfold.Result:
    fields: dict[str, object] = {
        "name": "told",
        "data_dir": folder / "data",
        "storage_path": folder / "runs",
        "checkpoint_config": runfold.CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="accuracy", checkpoint_score_order="max"
        ),
        **more,
    }
    return runfold.Trainer(
        function,
        run_config=runfold.RunConfig(**fields),  # type: ignore[arg-type]  # fields by name
        validation_config=runfold.ValidationConfig(fn=validate),
    ).fit()


def test_a_result_is_the_same_from_fit_from_the_log_and_from_the_storage(tmp_path: Path) -> None:
    told = fit(tmp_path, trains)
    assert told.metrics is not None
    assert math.isnan(float(str(told.metrics["loss"])))
    assert told.path == str(tmp_path / "runs" / "told")
    assert told.return_value == {"set": {1, 2}}
    assert told.checkpoint is not None
    assert told.checkpoint.path.endswith("checkpoint_000002_1")
    assert [metrics["accuracy"] for _, metrics in told.best_checkpoints] == [0.2, 0.3]
    best = told.get_best_checkpoint("accuracy", "max")
    assert best is not None
    assert best.path.endswith("checkpoint_000000_1")
    assert list(told.metrics_dataframe["index"]) == [0, 1, 2, 3]
    rows = told.checkpoints_dataframe
    assert list(rows["status"].fillna("")) == ["validated", "", "validated"]
    assert list(rows["kept"]) == [True, False, True]
    for other in (runfold.get_result(told.run, data=tmp_path / "data"), runfold.Result.from_path(str(told.path))):
        assert other == told
        assert other.metrics_dataframe.equals(told.metrics_dataframe)
        assert other.checkpoints_dataframe.equals(told.checkpoints_dataframe)
        assert (other.run, other.error, other.filesystem is not None) == (told.run, None, True)


def test_a_failed_run_can_be_read_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(WorkerGroupError, match="boom") as caught:
        fit(tmp_path, fails)
    told = caught.value.result
    assert told is not None
    assert told.state == "errored"
    for other in (runfold.get_result(told.run, data=tmp_path / "data"), runfold.Result.from_path(str(told.path))):
        assert other == told
        assert isinstance(other.error, WorkerGroupError)
        assert other.checkpoint is not None


def test_without_a_log_the_sealed_checkpoints_tell_what_they_know(tmp_path: Path) -> None:
    told = fit(tmp_path, trains)
    for kept in (tmp_path / "runs" / "told" / ".runfold").iterdir():
        kept.unlink()
    found = runfold.Result.from_path(str(told.path))
    assert (found.run, found.state) == (told.run, "unknown")
    assert found.checkpoint is not None
    assert told.checkpoint is not None
    assert found.checkpoint.path == told.checkpoint.path
    with pytest.raises(RuntimeError, match="there is no directory"):
        runfold.Result.from_path(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="no run of runfold"):
        runfold.Result.from_path(tmp_path / "empty")


def test_best_checkpoints_are_asked_for_by_metric(tmp_path: Path) -> None:
    told = fit(tmp_path, trains)
    with pytest.raises(RuntimeError, match="no checkpoint of"):
        told.get_best_checkpoint("f1", "max")
    with pytest.raises(ValueError, match="mode"):
        told.get_best_checkpoint("accuracy", "best")  # type: ignore[arg-type]  # what a user may write
    least = told.get_best_checkpoint("accuracy", "min")
    assert least is not None
    assert least.path.endswith("checkpoint_000002_1")
    with pytest.raises(DeprecationWarning):
        _ = told.config


# --- observers on the way


class Keeps(runfold.ControllerCallback, runfold.UserCallback):
    """Keeps what it is told, in this process."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.accuracies: list[object] = []
        self.result: object = None

    def after_controller_state_update(self, previous_state: object, current_state: object) -> None:
        self.states.append(str(getattr(current_state, "name", "")))

    def after_report(self, run_context: object, metrics: object, checkpoint: object | None) -> None:
        self.accuracies.append(checkpoint)
        raise RuntimeError("an observer's own fault")

    def after_controller_finish(self, result: object) -> None:
        self.result = result


def test_observers_of_fit_are_told_in_this_process_and_their_faults_are_counted(tmp_path: Path) -> None:
    keeps = Keeps()
    told = fit(tmp_path, trains, callbacks=(keeps,), callback_failure_limit=100)
    assert keeps.states == ["scheduling", "running", "shutting_down", "finished"]
    assert keeps.result is told
    assert told.callback_failures == {"Keeps[0]": 4}
    assert [isinstance(one, runfold.Checkpoint) for one in keeps.accuracies] == [True, True, True, False]


OBSERVER = """
import json
import runfold

class Writes(runfold.Callback):
    def on_event(self, happening):
        with open("told.jsonl", "a") as file:
            file.write(json.dumps([happening.hook, happening.n, happening.k]) + "\\n")
"""


def test_runfold_observe_tells_on_from_where_it_was(runfold: Commands) -> None:
    runfold.write("watchers.py", OBSERVER)
    runfold.write("jobs.py", "import runfold\n\ndef train():\n    runfold.report({'loss': 1.0})\n")
    runfold.ok("run", "jobs.py:train")
    listed = json.loads(runfold.ok("ls", "-o", "json").out)
    run = str(listed[0]["run"] if isinstance(listed, list) else listed["run"])
    words = ("observe", run, "watchers:Writes", "--position", "position")
    runfold.ok(*words)  # modules are found where it is called, as those of `run` are
    first = (runfold.folder / "told.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(first[0])[0] == "after_controller_start"
    assert json.loads(first[-1])[0] == "after_controller_finish"
    assert len({tuple(json.loads(line)[1:]) for line in first}) == len(first)
    runfold.ok(*words)
    assert (runfold.folder / "told.jsonl").read_text(encoding="utf-8").splitlines() == first
    assert unpack(int((runfold.folder / "position").read_text(encoding="utf-8"))) == json.loads(first[-1])[1]


def test_callbacks_named_in_the_environment_are_added(runfold: Commands) -> None:
    runfold.write("watchers.py", OBSERVER)
    runfold.write(
        "script.py",
        "import runfold\n\ndef train():\n    runfold.report({'loss': 1.0})\n\n"
        "if __name__ == '__main__':\n    runfold.Trainer(train).fit()\n",
    )
    import subprocess
    import sys

    env = runfold.environment(RUNFOLD_CALLBACKS="watchers.Writes", PYTHONPATH=str(runfold.folder))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=runfold.folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "after_controller_finish" in (runfold.folder / "told.jsonl").read_text(encoding="utf-8")
