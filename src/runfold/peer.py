"""What of the peer's environment variables became a field here: they are not read, and `doctor` says what to set."""

from __future__ import annotations

from typing import Final

INSTEAD: Final[dict[str, str]] = {
    "RAY_TRAIN_V2_ENABLED": "nothing: there is one version",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "nothing: facts arrive as they happen, nothing is polled",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "timeouts.lost_after_s",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "timeouts.start_timeout_s",
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "timeouts.collective_timeout_s, or timeout_s of the call",
    "RAY_TRAIN_COLLECTIVE_WARN_INTERVAL_S": "nothing: `runfold get` and `watch` show where each rank is",
    "RAY_TRAIN_CHECKPOINT_UPLOAD_WARN_INTERVAL_S": "timeouts.checkpoint_timeout_s",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "nothing: notices are facts, from any source",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "nothing: notices are facts, nothing is polled",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "nothing: stdout and stderr of every rank are kept; see `runfold logs`",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "nothing: the log of a run is structured; see `runfold replay`",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "nothing: `runfold logs -o json`",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "nothing: the state is the log, folded",
    "RAY_TRAIN_STATE_ACTOR_RECONCILIATION_INTERVAL_S": "nothing: the state is the log, folded",
    "RAY_TRAIN_METRICS_ENABLED": "nothing: every report is in the log; see metrics_ranks",
    "RAY_TRAIN_CALLBACKS": "hooks.callbacks, or the variable RUNFOLD_CALLBACKS where the run is asked for",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "nothing: `runfold ls` and `get` always know",
    "RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR": "timeouts.progress_timeout_s",
    "RAY_TRAIN_NCCL_RAS_MIN_POLL_INTERVAL_S": "timeouts.progress_timeout_s",
    "RAY_TRAIN_NCCL_RAS_CONFIRM_DURATION_S": "timeouts.progress_timeout_s",
    "RAY_TRAIN_NCCL_RAS_ACTION": "failure.max_hangs",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "nothing: there is one version",
    "RAY_CHDIR_TO_TRIAL_DIR": "working_dir",
    "TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES": "env.CUDA_VISIBLE_DEVICES",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "timeouts.stop_grace_s",
    "JAX_DISTRIBUTED_SHUTDOWN_TIMEOUT_S": "timeouts.stop_grace_s",
}
"""Variable → what to set instead, as a path of the job (`--set PATH=VALUE`, or the same field in Python)."""

UNKNOWN: Final = "nothing that runfold knows of"


def peer_warning(variable: str) -> str:
    """Return what to tell somebody who has set a variable of the peer's."""
    return f"{variable} is set and not read by runfold; instead: {INSTEAD.get(variable, UNKNOWN)}"
