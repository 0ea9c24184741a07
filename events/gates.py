"""The hooks that can be gates: asked by the controller, through the log. The names are the peer's."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

RESIZE: Final = "before_controller_execute_resize_decision"
START: Final = "on_controller_start_worker_group"
FAILURE: Final = "before_controller_execute_failure_decision"
CONTEXT: Final = "before_init_train_context"
SHUTDOWN: Final = "before_controller_shutdown"
ABORT: Final = "before_controller_abort"
STATE: Final = "after_controller_state_update"
REPORT: Final = "after_report"
GROUP_GONE: Final = "after_worker_group_shutdown"
ABORT_GONE: Final = "after_worker_group_abort"
REPLICA_START: Final = "after_replica_group_start"
REPLICA_SHUTDOWN: Final = "before_replica_group_shutdown"

GATES: Final[Mapping[str, Literal["waits", "follows"]]] = MappingProxyType(
    {
        RESIZE: "waits",
        START: "waits",
        FAILURE: "waits",
        CONTEXT: "waits",
        SHUTDOWN: "waits",
        ABORT: "waits",
        "after_controller_start": "follows",
        STATE: "follows",
        "before_worker_group_start": "follows",
        "after_worker_group_start": "follows",
        "after_worker_group_training_start": "follows",
        "before_worker_group_shutdown": "follows",
        GROUP_GONE: "follows",
        "before_worker_group_abort": "follows",
        ABORT_GONE: "follows",
        REPLICA_START: "follows",
        REPLICA_SHUTDOWN: "follows",
        REPORT: "follows",
        "after_exception": "follows",
    }
)
"""Hooks that can be gates. The run waits for the answer, or goes on and only a failing one is acted on."""
