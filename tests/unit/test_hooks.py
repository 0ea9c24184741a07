"""What a job's callbacks are called for is looked up where the job is typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runfold.config import CALLBACKS_VARIABLE
from runfold.controller.intake import NOTHING_ASKED, warnings_of
from runfold.errors import UsageError
from runfold.events.config import HooksConfig
from runfold.events.job import Job
from runfold.jobs import changed, job_from

FAILURE = "before_controller_execute_failure_decision"
SHUTDOWN = "before_controller_shutdown"
CALLBACKS = f"""
import runfold


class Veto(runfold.ControllerCallback):
    def {FAILURE}(self, failure_decision):
        raise RuntimeError("no")


class Mild(runfold.ControllerCallback):
    @runfold.gate(on_error="warn")
    def {SHUTDOWN}(self):
        raise RuntimeError("no")


class Within(runfold.WorkerCallback):
    def after_init_train_context(self):
        pass


class Told(runfold.UserCallback):
    def after_exception(self, run_context, worker_exceptions):
        pass


class Wrong(runfold.UserCallback):
    def on_worker_group_start(self):
        pass


several = [Mild(), Within]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of callbacks, whose name no other test has imported."""
    name = f"cb_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CALLBACKS, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def module(folder: Path) -> str:
    return next(folder.glob("*.py")).stem


def hooks(*settings: str) -> HooksConfig:
    return job_from("a.py:f", settings=[f"hooks.{one}" for one in settings]).hooks


def test_gates_and_hooks_in_ranks_of_a_jobs_own_callbacks_are_found(folder: Path) -> None:
    name = module(folder)
    assert hooks(f'callbacks=["{name}:Veto"]') == HooksConfig(callbacks=(f"{name}:Veto",), gates={FAILURE: "fail"})
    found = hooks(f'callbacks=["{name}:Veto", "{name}.py:several"]')
    assert found.callbacks == (f"{name}:Veto", f"{name}.py:several")
    assert found.gates == {FAILURE: "fail", SHUTDOWN: "warn"}
    assert found.in_ranks
    assert hooks(f'callbacks=["{name}:Told"]') == HooksConfig(callbacks=(f"{name}:Told",))


def test_what_a_job_says_of_gates_itself_weighs_more(folder: Path) -> None:
    found = hooks(f'callbacks=["{module(folder)}:Veto"]', f"gates.{FAILURE}=warn", f"gates.{SHUTDOWN}=fail")
    assert found.gates == {FAILURE: "warn", SHUTDOWN: "fail"}


def test_callbacks_of_the_environment_come_before_the_jobs_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = module(folder)
    monkeypatch.setenv(CALLBACKS_VARIABLE, f"{name}:Veto,{name}:Told")
    assert job_from("a.py:f").hooks.gates == {FAILURE: "fail"}
    found = hooks(f'callbacks=["{name}:Mild", "{name}:Veto"]')
    assert found.callbacks == (f"{name}:Veto", f"{name}:Told", f"{name}:Mild")
    assert found.gates == {FAILURE: "fail", SHUTDOWN: "warn"}


def test_a_callback_that_cannot_be_loaded_is_refused_unless_the_job_says_what_it_is_called_for(folder: Path) -> None:
    name = module(folder)
    for missing in (f"{name}:Missing", "nowhere_at_all:Veto", f"{name}:FAILS"):
        with pytest.raises(UsageError, match=f"the callback {missing} of hooks.callbacks cannot be loaded"):
            hooks(f'callbacks=["{missing}"]')
    with pytest.raises(UsageError, match="on_worker_group_start is a context"):
        hooks(f'callbacks=["{name}:Wrong"]')
    there = hooks('callbacks=["nowhere_at_all:Veto"]', f"gates.{FAILURE}=fail")
    assert there == HooksConfig(callbacks=("nowhere_at_all:Veto",), gates={FAILURE: "fail"})


def test_a_resumed_job_with_other_callbacks_is_called_for_what_those_have(folder: Path) -> None:
    name = module(folder)
    job = job_from("a.py:f", settings=[f'hooks.callbacks=["{name}:Veto"]'])
    assert changed(job, ["priority=1"]).hooks == job.hooks
    assert changed(job, [f'hooks.callbacks=["{name}:Mild"]']).hooks.gates == {SHUTDOWN: "warn"}


def test_a_job_published_by_hand_is_warned_of_callbacks_that_nothing_calls() -> None:
    job = Job(entrypoint="a.py:f", hooks=HooksConfig(callbacks=("cb:Veto",)))
    assert warnings_of(job, ()) == (NOTHING_ASKED,)
    asked = Job(entrypoint="a.py:f", hooks=HooksConfig(callbacks=("cb:Veto",), gates={FAILURE: "fail"}))
    assert warnings_of(asked, ()) == ()
