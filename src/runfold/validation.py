"""How checkpoints are validated: a function of the user's, in processes of its own, beside the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from runfold.workers.given import ValidationTaskConfig


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Validates checkpoints by `fn(checkpoint, **kwargs)`, which returns a dict of metrics.

    `task_config` holds the arguments and the time limit of each, unless its report says otherwise. Each runs in a
    process of its own that takes `resources` of the pool, at most `max_concurrent` at a time.
    """

    fn: Callable[..., object] | str
    task_config: ValidationTaskConfig = field(default_factory=ValidationTaskConfig)
    max_concurrent: int = 1
    resources: dict[str, float] = field(default_factory=lambda: {"CPU": 1.0})

    def __post_init__(self) -> None:
        if not isinstance(self.fn, str) and not callable(self.fn):
            raise ValueError(f"fn: must be a function of a checkpoint, or a reference to one, not {self.fn!r}")
