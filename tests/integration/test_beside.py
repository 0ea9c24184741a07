"""User code beside the training: data sets, validations in processes of their own, gates in the hook process."""

from __future__ import annotations

import json
import time
from ast import literal_eval
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import runfold
from runfold.errors import ControllerError
from runfold.events.config import Timeouts
from runfold.events.transitions import CheckpointValidated, FailureDecided, Warned
from runfold.replay.source import load
from support.beside import (
    Refuses,
    Traces,
    asks_for_checkpoints,
    fails_once,
    go_over_data,
    train_and_validate,
    validate,
    wait_for_the_end,
    whole_data,
)
from support.commands import COMMAND_TIMEOUT_S, Commands

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["support.commands"]
VALIDATION = runfold.ValidationConfig(fn=validate, max_concurrent=2, resources={"CPU": 0.5})


def fit(
    folder: Path,
    function: Callable[..., object],
    *,
    workers: int = 1,
    retries: int = 0,
    callbacks: tuple[object, ...] = (),
    timeouts: Timeouts | None = None,
    validation: runfold.ValidationConfig | None = None,
    datasets: dict[str, object] | None = None,
    **config: object,
) -> runfold.Result:
    return runfold.Trainer(
        function,
        train_loop_config={"folder": str(folder), **config},
        scaling_config=runfold.ScalingConfig(num_workers=workers),
        run_config=runfold.RunConfig(
            name="beside",
            data_dir=folder / "data",
            callbacks=callbacks,
            timeouts=timeouts or Timeouts(),
            failure_config=runfold.FailureConfig(max_failures=retries),
        ),
        validation_config=validation,
        datasets=datasets,
        dataset_config=runfold.DataConfig(shuffle_seed=5) if datasets else None,
    ).fit()


# --- data


def test_no_row_is_lost_or_doubled_over_a_restart_though_only_rank_0_saves(tmp_path: Path) -> None:
    result = fit(tmp_path, go_over_data, workers=2, retries=1, datasets={"train": range(16)})
    assert (result.attempts, result.return_value) == (2, 1)
    rows: list[int] = []
    for rank in range(2):
        lines = (tmp_path / f"rows-{rank}").read_text(encoding="utf-8").splitlines()
        rows += [row for line in lines for row in literal_eval(line.partition(" ")[2])]
    assert sorted(rows) == list(range(16))


# --- validations


WAYS = {
    "well": "1 metrics",
    "segfault": "ended by signal 11 (SIGSEGV), without an answer",
    "raise": "RuntimeError: no good",
    "list": "TypeError: a validation must return a dict of metrics, not list",
    "none": "TypeError: a validation must return a dict of metrics, not NoneType",
    "object": "metrics.accuracy",
    "limited": "MemoryError: its address space is limited to 2048 MiB (RLIMIT_AS)",
    "killed": "ended by signal 9 (SIGKILL), without an answer",
    "exit": "exited with code 3, without an answer",
    "slow": "no result in time",
}
"""How a validation ends: what is said of it."""


def test_whatever_becomes_of_a_validation_is_a_status_and_training_never_notices(tmp_path: Path) -> None:
    result = fit(tmp_path, train_and_validate, validation=VALIDATION, ways=" ".join(WAYS))
    assert (result.state, result.attempts) == ("finished", 1)
    assert isinstance(result.return_value, dict)
    told = list(result.return_value.values())
    assert told[0] == ["validated", 0.0]
    assert told[1:-1] == [["failed", None]] * (len(WAYS) - 2)
    assert told[-1] == ["timed_out", None]
    history = load(result.run, data_dir=tmp_path / "data")
    said = [item for entry in history.entries for item in entry.transitions]
    reasons = {item.name: item.reason for item in said if isinstance(item, CheckpointValidated)}
    for index, why in enumerate(WAYS.values()):
        assert why in reasons[f"checkpoint_{index:06d}_1"]
    assert [item.decision for item in said if isinstance(item, FailureDecided)] == []


def test_the_end_of_a_run_waits_for_validations_though_nobody_trains_any_more(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    whole = runfold.ValidationConfig(fn=validate)
    result = fit(tmp_path, train_and_validate, validation=whole, ways="gated", leave=True)
    history = load(result.run, data_dir=tmp_path / "data")
    ends = [
        item.outcome for entry in history.entries for item in entry.transitions if isinstance(item, CheckpointValidated)
    ]
    assert ends == ["validated"]


def test_a_validation_that_a_killed_supervisor_had_begun_is_begun_again(runfold: Commands) -> None:
    (runfold.folder / "support_beside.py").write_text(
        Path(validate.__code__.co_filename).read_text(encoding="utf-8"), encoding="utf-8"
    )
    job = {
        "entrypoint": "support_beside:train_and_validate",
        "config": {"ways": "gated", "folder": str(runfold.folder), "leave": True},
        "validation": {"entrypoint": "support_beside:validate"},
        "working_dir": str(runfold.folder),
    }
    runfold.write("job.json", json.dumps(job))
    begun = runfold.folder / "begun"

    def wait_begun(count: int) -> None:
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while not begun.exists() or len(begun.read_text(encoding="utf-8")) < count:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with runfold.service("--slots", "2") as up:
        run = runfold.submit("job.json")
        wait_begun(1)
        psutil.Process(up.pids["controller"]).kill()
        psutil.Process(up.pids["supervisor"]).kill()
        wait_begun(2)
        (runfold.folder / "go").touch()
        status = runfold.ended(run)
        up.pids = json.loads((runfold.data / "connection.json").read_text(encoding="utf-8"))["pids"]
    assert status["state"] == "finished"
    checkpoints = status["checkpoints"]
    assert isinstance(checkpoints, list)
    assert [one["status"] for one in checkpoints] == ["validated"]


def test_any_rank_may_ask_which_checkpoints_there_are_and_wait_for_what_it_needs(tmp_path: Path) -> None:
    trainer = runfold.Trainer(
        asks_for_checkpoints,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=runfold.ScalingConfig(num_workers=2),
        run_config=runfold.RunConfig(name="asks", data_dir=tmp_path / "data", metrics_ranks="all"),
        validation_config=VALIDATION,
    )
    told = [report["told"] for report in trainer.fit().reports() if "told" in report]
    assert told == [[["pending"], ["pending"], ["validated"]]]


def test_in_this_process_there_is_one_rank_and_it_has_all_the_data(tmp_path: Path) -> None:
    trainer = runfold.Trainer(
        whole_data,
        scaling_config=runfold.ScalingConfig(num_workers=0),
        run_config=runfold.RunConfig(name="here", data_dir=tmp_path),
        datasets={"train": [1, 2, 3]},
    )
    assert trainer.fit().return_value == [[1, 2, 3], ["committed"]]


# --- gates and hooks in ranks


def test_gates_are_asked_in_one_process_and_hooks_are_called_in_ranks(tmp_path: Path) -> None:
    result = fit(tmp_path, fails_once, retries=1, callbacks=(Traces(tmp_path),))
    assert result.return_value == {"seat": "seat 0"}
    assert (tmp_path / "traces").read_text(encoding="utf-8").splitlines() == [
        "resize 1",
        "start 1",
        "rank begins",
        "rank ends",
        "failure retry RuntimeError: boom",
        "resize 1",
        "start 1",
        "rank begins",
        "report (",
        "sync",
        "transfer",
        "report )",
        "rank ends",
        "shutdown after 5",
    ]
    history = load(result.run, data_dir=tmp_path / "data")
    warned = [item for entry in history.entries for item in entry.transitions if isinstance(item, Warned)]
    assert {one.about for one in warned} == {"gate:after_controller_state_update"}
    assert "only told" in warned[0].reason


@pytest.mark.parametrize("how", ["raises", "hangs", "crashes"])
def test_a_gate_that_refuses_the_end_makes_an_error_of_a_success(tmp_path: Path, how: str) -> None:
    timeouts = Timeouts(hook_timeout_s=2.0 if how == "hangs" else 30.0)
    with pytest.raises(ControllerError, match="training finished") as caught:
        fit(tmp_path, lambda config: len(config), callbacks=(Refuses(how),), timeouts=timeouts)
    assert caught.value.result is not None
    assert caught.value.result.return_value == 1


VETO = """
import runfold


class Veto(runfold.ControllerCallback):
    def before_controller_execute_failure_decision(self, failure_decision):
        raise RuntimeError("vetoed")

    def after_controller_start(self, run_context):
        open("told", "w").close()
"""


def test_a_gate_that_a_typed_job_names_is_asked(runfold: Commands) -> None:
    runfold.write("cb.py", VETO)
    runfold.write("job.py", "def f():\n    raise ValueError('of the user')\n")
    words = ("run", "job.py:f", "--set", "failure.max_failures=1", "--set")
    done = runfold(*words, 'hooks.callbacks=["cb:Veto"]', "--name", "vetoed", "-o", "json")
    assert done.code == 1
    assert done.document["attempt"] == 1, "the gate forbade the second one"
    assert "vetoed" in runfold.ok("replay", str(done.document["run"])).out
    assert (runfold.folder / "told").exists(), "what is only told is told while `run` runs"
    missing = runfold(*words, 'hooks.callbacks=["cb:Missing"]')
    assert missing.code == 2
    assert "the callback cb:Missing of hooks.callbacks cannot be loaded" in missing.err


def test_a_rank_that_is_asked_to_end_calls_its_hooks_first(tmp_path: Path, runfold: Commands) -> None:
    import runfold as api

    trainer = api.Trainer(
        wait_for_the_end,
        train_loop_config={},
        run_config=api.RunConfig(
            name="ended",
            data_dir=runfold.data,
            callbacks=(Traces(tmp_path),),
            timeouts=Timeouts(stop_grace_s=25.0),  # as long as its hooks take
        ),
    )
    with runfold.service("--slots", "2"):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as threads:
            fitting = threads.submit(trainer.fit)
            deadline = time.monotonic() + COMMAND_TIMEOUT_S
            while not (tmp_path / "traces").exists() or "report )" not in (tmp_path / "traces").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            runfold.ok("abort", trainer.run_id, "--reason", "enough")
            assert isinstance(fitting.exception(COMMAND_TIMEOUT_S), api.errors.RunAbortedError)
    assert (tmp_path / "traces").read_text(encoding="utf-8").splitlines()[-1] == "rank ends"
