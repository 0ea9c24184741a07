"""The Python API: what `fit` returns and raises."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import runfold
from runfold.errors import UsageError, WorkerGroupError
from support.commands import COMMAND_TIMEOUT_S, Commands

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = Callable[..., object]


def trainer(
    data: Path, function: Callable[..., object] | str, *, workers: int = 2, **config: object
) -> runfold.Trainer:
    """A trainer that starts everything itself in a directory of the test's own."""
    return runfold.Trainer(
        function,
        train_loop_config=config,
        scaling_config=runfold.ScalingConfig(num_workers=workers),
        run_config=runfold.RunConfig(name="fit", data_dir=data),
    )


def report_and_return(config: dict[str, float]) -> dict[str, object]:
    rank = runfold.get_context().get_world_rank()
    for step in range(3):
        runfold.report({"loss": config["lr"] / (step + 1), "bad": math.nan, "rank": rank, "index": -1})
    return {"rank": rank, "name": runfold.get_context().get_experiment_name()}


def test_a_result_holds_what_rank_0_reported_and_returned(tmp_path: Path) -> None:
    result = trainer(tmp_path, report_and_return, lr=0.5).fit()
    assert (result.state, result.attempts, result.error) == ("finished", 1, None)
    assert result.return_value == {"rank": 0, "name": "fit"}
    assert result.metrics is not None
    assert result.metrics["rank"] == 0
    assert math.isnan(float(str(result.metrics["bad"])))
    frame = result.metrics_dataframe
    assert list(frame["loss"]) == [0.5, 0.25, 0.5 / 3]
    assert list(frame["index"]) == [0, 1, 2]
    assert list(frame["metric.index"]) == [-1, -1, -1]


def test_a_value_that_json_cannot_say_comes_back_whole(tmp_path: Path) -> None:
    def large() -> object:
        return {1: (2, 3), "set": {4}}

    assert trainer(tmp_path, large, workers=1).fit().return_value == {1: (2, 3), "set": {4}}


def test_an_error_carries_the_result_and_every_ranks_failure(tmp_path: Path) -> None:
    def fails() -> None:
        runfold.report({"loss": 1.0})
        runfold.barrier()
        if runfold.get_context().get_world_rank() == 1:
            raise ValueError("the user's own")

    with pytest.raises(WorkerGroupError, match="the user's own") as caught:
        trainer(tmp_path, fails).fit()
    assert caught.value.result is not None
    assert caught.value.result.state == "errored"
    assert caught.value.result.metrics == {"loss": 1.0}
    assert "test_trainer.py" in caught.value.worker_failures[1]


def test_a_function_can_be_named_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def train(config):\n    return config\n", encoding="utf-8")
    assert trainer(tmp_path / "data", f"{script}:train", workers=1, lr=1).fit().return_value == {"lr": 1}


def test_it_uses_the_service_that_answers(runfold_commands: Commands) -> None:
    with runfold_commands.service():
        result = trainer(runfold_commands.data, report_and_return, lr=1.0).fit()
        assert result.state == "finished"
        assert result.run in runfold_commands.ok("ls").out
        assert len(result.metrics_dataframe) == 3
        assert not (runfold_commands.data / "once").exists()


async def test_it_works_where_an_event_loop_runs_already(tmp_path: Path) -> None:
    await asyncio.sleep(0)
    assert trainer(tmp_path, report_and_return, workers=1, lr=1.0).fit().state == "finished"


def test_local_mode_runs_in_this_process_and_raises_what_is_raised(tmp_path: Path) -> None:
    seen: list[object] = []

    def local(config: dict[str, object]) -> str:
        runfold.report({"loss": 0.5})
        runfold.barrier()
        seen.extend([config["lr"], runfold.all_gather("mine"), runfold.broadcast_from_rank_zero("first")])
        return "here"

    result = trainer(tmp_path, local, workers=0, lr=0.1).fit()
    assert (result.return_value, result.metrics, seen) == ("here", {"loss": 0.5}, [0.1, ["mine"], "first"])

    def raises() -> None:
        raise KeyError("as it is")

    with pytest.raises(KeyError, match="as it is"):
        trainer(tmp_path, raises, workers=0).fit()
    assert {one.name for one in tmp_path.iterdir()} == {"archive", "storage"}, "what any run leaves, and nothing else"


INTERRUPTED = """
import signal, sys, time
import runfold

def handler(number, frame):
    raise SystemExit("the handler that was there before")

def wait():
    while True:
        runfold.report({"waiting": True})
        time.sleep(0.05)

signal.signal(signal.SIGTERM, handler)
try:
    runfold.Trainer(wait, run_config=runfold.RunConfig(data_dir=sys.argv[1])).fit()
except runfold.errors.RunAbortedError as error:
    print("aborted:", error.result.state, error.result.metrics, flush=True)
print("restored:", signal.getsignal(signal.SIGTERM) is handler)
"""


def test_a_signal_aborts_the_run_and_handlers_are_restored(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-P", script, tmp_path / "data"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        while " report " not in (line := process.stderr.readline()):
            assert line, process.communicate()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
    finally:
        process.kill()
    assert "aborted: aborted {'waiting': True}" in out, out + err
    assert "restored: True" in out
    assert list((tmp_path / "data" / "once").iterdir()) == []


def test_what_cannot_be_trained_with_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 arguments"):
        trainer(tmp_path, lambda first, second: None)
    with pytest.raises(UsageError, match=r"\$\.config\.what"):
        trainer(tmp_path, report_and_return, what=object())
    with pytest.raises(UsageError, match=r"\$\.entrypoint"):
        trainer(tmp_path, "nothing")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def runfold_commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)
