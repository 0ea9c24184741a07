"""What is given to a trainer must be of the class it is documented with: said by the argument's name."""

from __future__ import annotations

import pytest

import runfold
from runfold.errors import UsageError
from runfold.workers.context import TrainContext
from runfold.workers.link import Start


def start() -> Start:
    """What a rank is told first."""
    return Start(
        run="r", name="n", attempt=1, rank=0, life=1, world_size=1, local_rank=0, local_world_size=1, node_rank=0,
        entrypoint="a:b",
    )  # fmt: skip


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


@pytest.mark.parametrize(
    "name", ["sync_config", "verbose", "stop", "progress_reporter", "log_to_file", "logging_config"]
)
def test_what_the_peer_s_run_config_had_says_what_to_use_instead(name: str) -> None:
    with pytest.raises(DeprecationWarning, match=rf"RunConfig\({name}=…\) is gone: "):
        runfold.RunConfig(**{name: {}})  # type: ignore[arg-type]  # fields by name


def test_the_environment_of_ranks_may_be_given_as_the_peer_does() -> None:
    config = runfold.RunConfig(worker_runtime_env={"env_vars": {"A": "1", "B": "2"}}, env={"B": "3"})
    assert config.rank_env == {"A": "1", "B": "3"}
    with pytest.raises(ValueError, match="worker_runtime_env: 'pip' is not done by runfold"):
        runfold.RunConfig(worker_runtime_env={"pip": ["torch"]})
    prepared = runfold.RunConfig(pool="ray", worker_runtime_env={"pip": ["torch"], "env_vars": {"A": "1"}})
    assert (prepared.runtime_env, prepared.rank_env) == ({"pip": ["torch"]}, {"A": "1"})


def test_what_is_gone_of_trainers_and_contexts_says_where_it_went() -> None:
    for call in (runfold.Trainer.restore, runfold.Trainer.can_restore):
        with pytest.raises(DeprecationWarning, match="the same name and storage_path continues"):
            call("path")
    for argument in ("metadata", "resume_from_checkpoint"):
        with pytest.raises(DeprecationWarning, match=rf"Trainer\({argument}=…\) is gone: "):
            runfold.Trainer(print, **{argument: "x"})  # type: ignore[arg-type]  # what is tested
    for name in ("get_metadata", "get_trial_name", "get_trial_id", "get_trial_resources", "get_trial_dir"):
        with pytest.raises(DeprecationWarning, match=f"{name} is gone: "):
            getattr(TrainContext(start()), name)()


def test_what_a_validation_takes_may_be_said_as_the_peer_does() -> None:
    def validated(**options: object) -> dict[str, float]:
        return runfold.ValidationConfig(fn=print, ray_remote_kwargs=options).resources

    assert validated(num_gpus=1) == {"CPU": 1.0, "GPU": 1.0}
    assert validated(num_cpus=0.5, resources={"disk": 2}) == {"CPU": 0.5, "disk": 2.0}
    assert runfold.ValidationConfig(fn=print, resources={"CPU": 2.0}).resources == {"CPU": 2.0}
    with pytest.raises(ValueError, match="ray_remote_kwargs: 'memory' is not done by runfold"):
        validated(memory=1)


def test_a_mark_on_what_can_be_no_gate_is_refused() -> None:
    class Mine(runfold.ControllerCallback):
        @runfold.gate
        def after_controller_finish(self, result: object) -> None:
            """Be asked, it is hoped."""

    with pytest.raises(UsageError, match=r"Mine\.after_controller_finish is marked as a gate"):
        runfold.Trainer(print, run_config=runfold.RunConfig(callbacks=(Mine(),)))
