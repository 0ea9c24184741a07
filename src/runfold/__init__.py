"""A training run is a fold: facts in, decisions logged, the log alone tells and rebuilds the run.

```text
in a training function      report  get_context  get_checkpoint  barrier  broadcast_from_rank_zero  all_gather
                            get_dataset_shard  get_all_reported_checkpoints  paused_progress  should_checkpoint
                            get_preemption_info
to keep a state             Checkpoint
to start one                Trainer(…).fit() -> Result   ScalingConfig  RunConfig  FailureConfig  CheckpointConfig
to ask a run afterwards      load(run_or_url) -> RunLog
what goes wrong             TrainingFailedError  RunAbortedError  errors
```

Names are loaded when they are first used: `import runfold` alone costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runfold import errors
    from runfold.errors import ControllerError, RunAbortedError, TrainingFailedError, WorkerGroupError
    from runfold.events.config import BackendConfig, CheckpointConfig, FailureConfig, ScalingConfig
    from runfold.logbook import RunLog, load
    from runfold.result import Result, get_result
    from runfold.runconfig import RunConfig
    from runfold.trainer import Trainer
    from runfold.validation import ValidationConfig
    from runfold.webhook import Webhook
    from runfold.workers.asking import get_all_reported_checkpoints, get_dataset_shard
    from runfold.workers.callbacks import (
        Callback,
        ControllerCallback,
        ExecutionGroupCallback,
        ReplicaGroupCallback,
        TrainContextCallback,
        UserCallback,
        WorkerCallback,
        WorkerGroupCallback,
        gate,
    )
    from runfold.workers.checkpoint import Checkpoint
    from runfold.workers.data import DataConfig
    from runfold.workers.given import CheckpointConsistencyMode, ReportedCheckpoint, ValidationTaskConfig
    from runfold.workers.pausing import paused_progress
    from runfold.workers.preemption import PreemptionInfo, get_preemption_info
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
    "BackendConfig",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "ControllerCallback",
    "ControllerError",
    "DataConfig",
    "ExecutionGroupCallback",
    "FailureConfig",
    "PreemptionInfo",
    "ReplicaGroupCallback",
    "ReportedCheckpoint",
    "Result",
    "RunAbortedError",
    "RunConfig",
    "RunLog",
    "ScalingConfig",
    "TrainContextCallback",
    "Trainer",
    "TrainingFailedError",
    "UserCallback",
    "ValidationConfig",
    "ValidationTaskConfig",
    "Webhook",
    "WorkerCallback",
    "WorkerGroupCallback",
    "WorkerGroupError",
    "__version__",
    "all_gather",
    "barrier",
    "broadcast_from_rank_zero",
    "errors",
    "gate",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "get_result",
    "load",
    "paused_progress",
    "report",
    "should_checkpoint",
]

_MODULE_OF: Final = {
    "BackendConfig": "runfold.events.config",
    "Callback": "runfold.workers.callbacks",
    "Checkpoint": "runfold.workers.checkpoint",
    "CheckpointConfig": "runfold.events.config",
    "CheckpointConsistencyMode": "runfold.workers.given",
    "CheckpointUploadMode": "runfold.workers.session",
    "ControllerCallback": "runfold.workers.callbacks",
    "ControllerError": "runfold.errors",
    "DataConfig": "runfold.workers.data",
    "ExecutionGroupCallback": "runfold.workers.callbacks",
    "FailureConfig": "runfold.events.config",
    "PreemptionInfo": "runfold.workers.preemption",
    "ReplicaGroupCallback": "runfold.workers.callbacks",
    "ReportedCheckpoint": "runfold.workers.given",
    "Result": "runfold.result",
    "RunAbortedError": "runfold.errors",
    "RunConfig": "runfold.runconfig",
    "RunLog": "runfold.logbook",
    "ScalingConfig": "runfold.events.config",
    "TrainContextCallback": "runfold.workers.callbacks",
    "Trainer": "runfold.trainer",
    "TrainingFailedError": "runfold.errors",
    "UserCallback": "runfold.workers.callbacks",
    "ValidationConfig": "runfold.validation",
    "ValidationTaskConfig": "runfold.workers.given",
    "Webhook": "runfold.webhook",
    "WorkerCallback": "runfold.workers.callbacks",
    "WorkerGroupCallback": "runfold.workers.callbacks",
    "WorkerGroupError": "runfold.errors",
    "all_gather": "runfold.workers.session",
    "barrier": "runfold.workers.session",
    "broadcast_from_rank_zero": "runfold.workers.session",
    "errors": "runfold.errors",
    "gate": "runfold.workers.callbacks",
    "get_all_reported_checkpoints": "runfold.workers.asking",
    "get_checkpoint": "runfold.workers.session",
    "get_context": "runfold.workers.session",
    "get_dataset_shard": "runfold.workers.asking",
    "get_preemption_info": "runfold.workers.preemption",
    "get_result": "runfold.result",
    "load": "runfold.logbook",
    "paused_progress": "runfold.workers.pausing",
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
