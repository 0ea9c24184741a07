"""How checkpoints are validated: a function of the user's, in processes of its own, beside the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from runfold.workers.given import ValidationTaskConfig


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Validates checkpoints by `fn(checkpoint, **kwargs)`, which returns a dict of metrics.

    `task_config` holds the arguments and the time limit of each, unless its report says otherwise. Each runs in a
    process of its own that takes `resources` of the pool, at most `max_concurrent` at a time. `ray_remote_kwargs`,
    the peer's way to say what each takes, may hold `num_cpus`, `num_gpus` and `resources`.
    """

    fn: Callable[..., object] | str
    task_config: ValidationTaskConfig = field(default_factory=ValidationTaskConfig)
    max_concurrent: int = 1
    resources: dict[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    ray_remote_kwargs: Mapping[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        if self.ray_remote_kwargs:
            object.__setattr__(self, "resources", _resources(self.ray_remote_kwargs))
        if not isinstance(self.fn, str) and not callable(self.fn):
            raise ValueError(f"fn: must be a function of a checkpoint, or a reference to one, not {self.fn!r}")


def _resources(given: Mapping[str, object]) -> dict[str, float]:
    """Return what options of a Ray task ask for. Raises `ValueError` for one that says something else."""
    found: dict[str, float] = {"CPU": 1.0}
    for name, value in given.items():
        match name, value:
            case "num_cpus", int() | float():
                found["CPU"] = float(value)
            case "num_gpus", int() | float():
                found["GPU"] = float(value)
            case "resources", Mapping():
                found |= {key: float(amount) for key, amount in cast("Mapping[str, float]", value).items()}
            case _:
                raise ValueError(
                    f"ray_remote_kwargs: {name!r} is not done by runfold; num_cpus, num_gpus, resources are"
                )
    return found
