"""What is given to a trainer must be of the class it is documented with: said by the argument's name."""

from __future__ import annotations

import pytest

import runfold
from runfold.errors import UsageError


@pytest.mark.parametrize("name", ["scaling_config", "run_config", "backend_config", "validation_config"])
def test_a_wrong_class_is_named_with_its_argument(name: str) -> None:
    given: dict[str, object] = {name: {"num_workers": 2}}
    with pytest.raises(
        UsageError, match=f"{name}: must be a runfold.{name.title().replace('_', '')}, not dict"
    ) as caught:
        runfold.Trainer(print, **given)  # type: ignore[arg-type]  # what is tested
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("hook", ["on_worker_group_start", "on_worker_group_shutdown"])
def test_a_hook_that_nothing_would_call_is_refused(hook: str) -> None:
    kind = type("Mine", (runfold.WorkerGroupCallback,), {hook: lambda self: None})
    config = runfold.RunConfig(callbacks=(kind(),))
    with pytest.raises(UsageError, match=rf"Mine\.{hook} is a context .*use before_worker_group"):
        runfold.Trainer(print, run_config=config)
