"""The configuration classes check themselves, from Python as from JSON, in the peer's words and defaults."""

from __future__ import annotations

import pytest

from runfold.events.config import CheckpointConfig, FailureConfig, HooksConfig, ScalingConfig, Timeouts
from runfold.runconfig import RunConfig


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ScalingConfig(num_workers=-1), "num_workers: must be at least 0"),
        (lambda: ScalingConfig(num_workers=True), "num_workers: must be an integer"),
        (lambda: ScalingConfig(num_workers=(1, 2, 3)), "num_workers: must be a number or"),  # type: ignore[arg-type]  # the mistake under test
        (lambda: ScalingConfig(num_workers=(3, 1)), "num_workers: must be at least 3"),
        (lambda: ScalingConfig(use_gpu=True, use_tpu=True), "use_gpu: cannot be combined"),
        (lambda: ScalingConfig(resources_per_worker={"GPU": 1}), "asks for GPU while use_gpu is false"),
        (lambda: ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 0}), "GPU is 0 while use_gpu"),
        (lambda: ScalingConfig(use_tpu=True, resources_per_worker={"TPU": 0}), "TPU is 0 while use_tpu"),
        (lambda: ScalingConfig(resources_per_worker={"CPU": float("nan")}), "CPU must be a finite amount"),
        (lambda: ScalingConfig(num_workers=2, label_selector=[{"a": "b"}]), "label_selector: a list needs one"),
        (lambda: ScalingConfig(use_gpu="yes"), "use_gpu: must be True or False, not 'yes'"),  # type: ignore[arg-type]  # the mistake under test
        (lambda: ScalingConfig(use_tpu=1), "use_tpu: must be True or False"),  # type: ignore[arg-type]  # the mistake under test
        (lambda: FailureConfig(relax_collectives_on_preemption=0), "relax_collectives_on_preemption: must be True"),  # type: ignore[arg-type]  # the mistake under test
        (lambda: CheckpointConfig(resume_doubtful="no"), "resume_doubtful: must be True or False"),  # type: ignore[arg-type]  # the mistake under test
        (lambda: HooksConfig(in_ranks="no"), "in_ranks: must be True or False"),  # type: ignore[arg-type]  # the mistake under test
        (lambda: RunConfig(warm_restarts="no"), "warm_restarts: must be True or False"),  # type: ignore[arg-type]  # the mistake under test
        (lambda: FailureConfig(max_failures=-2), "max_failures: must be at least -1"),
        (lambda: FailureConfig(repeat_limit=0), "repeat_limit: must be at least 1"),
        (lambda: FailureConfig(backoff_s=-1.0), "backoff_s: must be a finite number of seconds"),
        (lambda: CheckpointConfig(num_to_keep=0), "num_to_keep: must be at least 1"),
        (lambda: CheckpointConfig(checkpoint_score_order="best"), "checkpoint_score_order: must be"),  # type: ignore[arg-type]  # the mistake under test
        (lambda: Timeouts(stop_grace_s=float("inf")), "stop_grace_s: must be a finite number of seconds"),
    ],
)
def test_a_wrong_value_is_an_error_that_begins_with_the_field(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=r"^[a-z_]+: ") as error:
        make()  # type: ignore[operator]  # each row is a call
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("config", "resources"),
    [
        (ScalingConfig(), {"CPU": 1.0}),
        (ScalingConfig(use_gpu=True), {"GPU": 1.0}),
        (ScalingConfig(use_tpu=True), {"TPU": 1.0}),
        (ScalingConfig(resources_per_worker={"CPU": 2, "X": 0}), {"CPU": 2}),
        (ScalingConfig(use_gpu=True, resources_per_worker={"CPU": 2}), {"CPU": 2, "GPU": 1.0}),
        (ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 0.5}), {"GPU": 0.5}),
    ],
)
def test_what_one_rank_needs(config: ScalingConfig, resources: dict[str, float]) -> None:
    assert config.worker_resources == resources


def test_a_pair_makes_the_run_elastic_even_when_both_are_equal() -> None:
    fixed, elastic = ScalingConfig(num_workers=3), ScalingConfig(num_workers=(3, 3))
    assert (fixed.elastic, fixed.min_workers, fixed.max_workers) == (False, 3, 3)
    assert (elastic.elastic, elastic.min_workers, elastic.max_workers) == (True, 3, 3)
