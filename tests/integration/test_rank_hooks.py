"""Hooks of ranks that raise: as if the training function had, each where it is called; nothing else is touched."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import runfold
from runfold.errors import WorkerGroupError
from runfold.events.transitions import FailureDecided
from runfold.replay.source import load

if TYPE_CHECKING:
    from collections.abc import Iterator


SHAPES = Path(__file__).parents[1] / "support" / "shapes.py"


class Raises(runfold.WorkerCallback, runfold.TrainContextCallback):
    """Raises in one hook, whenever that is called."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def at(self, hook: str) -> None:
        if hook == self.hook:
            raise RuntimeError(f"raised in {hook}")

    def after_init_train_context(self) -> None:
        self.at("after_init_train_context")

    def before_worker_shutdown(self) -> None:
        self.at("before_worker_shutdown")

    @contextlib.contextmanager
    def on_report(self) -> Iterator[None]:
        self.at("on_report")
        yield

    @contextlib.contextmanager
    def on_checkpoint_sync(self) -> Iterator[None]:
        self.at("on_checkpoint_sync")
        yield

    @contextlib.contextmanager
    def on_checkpoint_transfer(self) -> Iterator[None]:
        self.at("on_checkpoint_transfer")
        yield


def saves() -> str:
    """Report metrics, then a checkpoint."""
    runfold.report({"step": 0})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "state").write_text("0", encoding="utf-8")
        runfold.report({"step": 1}, checkpoint=runfold.Checkpoint.from_directory(folder))
    return "done"


@pytest.mark.parametrize(
    ("hook", "backend", "kind", "attempts"),
    [
        ("on_report", "none", "user", 2),
        ("on_checkpoint_sync", "none", "user", 2),
        ("on_checkpoint_transfer", "none", "user", 2),
        ("before_worker_shutdown", "none", "user", 2),
        # What cannot even begin will not the next time.
        ("after_init_train_context", "none", "load", 1),
        ("after_init_train_context", f"{SHAPES}:TensorFlow", "load", 1),
    ],
    ids=lambda value: str(value).rpartition(":")[2],
)
def test_what_a_hook_of_a_rank_raises_is_the_rank_s_failure(
    tmp_path: Path, hook: str, backend: str, kind: str, attempts: int
) -> None:
    with pytest.raises(WorkerGroupError, match=f"RuntimeError: raised in {hook}") as caught:
        runfold.Trainer(
            saves,
            backend_config=runfold.BackendConfig(kind=backend),
            run_config=runfold.RunConfig(
                name="hooks",
                data_dir=tmp_path,
                callbacks=(Raises(hook),),
                failure_config=runfold.FailureConfig(max_failures=1),
            ),
        ).fit()
    result = caught.value.result
    assert result is not None
    assert (result.state, result.attempts) == ("errored", attempts)
    said = [item for entry in load(result.run, data_dir=tmp_path).entries for item in entry.transitions]
    decided = [(item.decision, item.failure.kind) for item in said if isinstance(item, FailureDecided)]
    assert decided == [("retry", kind)] * (attempts - 1) + [("raise", kind)]


class Late(runfold.ControllerCallback):
    """Raises when everything is over."""

    def after_controller_finish(self, result: object) -> None:
        raise RuntimeError("after the end")


def test_a_hook_that_raises_after_the_end_changes_no_result(tmp_path: Path) -> None:
    result = runfold.Trainer(
        saves, run_config=runfold.RunConfig(name="late", data_dir=tmp_path, callbacks=(Late(),))
    ).fit()
    assert (result.state, result.return_value, result.error) == ("finished", "done", None)
    assert result.callback_failures == {"Late[0]": 1}
