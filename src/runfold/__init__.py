"""A training run is a fold: facts in, decisions logged, the log alone tells and rebuilds the run.

```text
in a training function      report  get_context  get_checkpoint  barrier  broadcast_from_rank_zero  all_gather
to keep a state             Checkpoint
to start one                Trainer(…).fit() -> Result   ScalingConfig  RunConfig  FailureConfig  CheckpointConfig
to ask a run afterwards      load(run_or_url) -> RunLog
what goes wrong             errors
```

Names are loaded when they are first used: `import runfold` alone costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runfold import errors
    from runfold.events.config import CheckpointConfig, FailureConfig, ScalingConfig
    from runfold.logbook import RunLog, load
    from runfold.result import Result
    from runfold.trainer import RunConfig, Trainer
    from runfold.workers.checkpoint import Checkpoint
    from runfold.workers.session import (
        CheckpointUploadMode,
        all_gather,
        barrier,
        broadcast_from_rank_zero,
        get_checkpoint,
        get_context,
        report,
        should_checkpoint,
    )

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointUploadMode",
    "FailureConfig",
    "Result",
    "RunConfig",
    "RunLog",
    "ScalingConfig",
    "Trainer",
    "__version__",
    "all_gather",
    "barrier",
    "broadcast_from_rank_zero",
    "errors",
    "get_checkpoint",
    "get_context",
    "load",
    "report",
    "should_checkpoint",
]

_MODULE_OF: Final = {
    "Checkpoint": "runfold.workers.checkpoint",
    "CheckpointConfig": "runfold.events.config",
    "CheckpointUploadMode": "runfold.workers.session",
    "FailureConfig": "runfold.events.config",
    "Result": "runfold.result",
    "RunConfig": "runfold.trainer",
    "RunLog": "runfold.logbook",
    "ScalingConfig": "runfold.events.config",
    "Trainer": "runfold.trainer",
    "all_gather": "runfold.workers.session",
    "barrier": "runfold.workers.session",
    "broadcast_from_rank_zero": "runfold.workers.session",
    "errors": "runfold.errors",
    "get_checkpoint": "runfold.workers.session",
    "get_context": "runfold.workers.session",
    "load": "runfold.logbook",
    "report": "runfold.workers.session",
    "should_checkpoint": "runfold.workers.session",
}


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'runfold' has no attribute {name!r}")
    loaded = import_module(module)
    value = loaded if name == "errors" else getattr(loaded, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
