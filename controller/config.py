"""What a controller process is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runfold.events.subjects import DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """`url` is the broker's, with the controller's credentials; `data_dir` holds the seats.

    `host` is the first part of the seat. `peer_variables` are the names of RAY_TRAIN_* variables set in the service's
    environment, which nobody reads: runs are warned of them.
    """

    data_dir: Path
    url: str
    namespace: str = DEFAULT_NAMESPACE
    host: str = "controller"
    peer_variables: tuple[str, ...] = ()
