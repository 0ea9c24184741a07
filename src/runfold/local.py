"""Local mode (`num_workers=0`): the training function runs in this process, without broker, log or other ranks."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runfold.events.values import unpack
from runfold.local_storage import LocalCheckpoints
from runfold.result import Result
from runfold.workers.link import Collect, Collected, Go, Inquire, Listed, Report, Start
from runfold.workers.load import checked, load_entrypoint
from runfold.workers.session import Session, activate

if TYPE_CHECKING:
    from collections.abc import Callable

    from runfold.events.base import Json
    from runfold.events.job import Job
    from runfold.workers.link import FromRank, FromRunner


class LocalLink:
    """Answers what a rank alone in its group says: reports are kept, collectives return its own value."""

    def __init__(self, checkpoints: LocalCheckpoints) -> None:
        self._checkpoints = checkpoints
        self.lock = threading.RLock()
        self.reports = 0
        self.metrics: dict[str, Json] | None = None
        self._answers: list[FromRunner] = []

    def send(self, message: FromRank, limit_bytes: int = 0) -> None:  # noqa: ARG002  # as in `session.Link`
        """Keep a report's metrics, commit its checkpoint; answer a collective."""
        if isinstance(message, Report):
            self._checkpoints.commit(message)
            self.metrics = message.metrics
            self.reports += 1
        elif isinstance(message, Collect):
            self._answers.append(Collected(message.number, [] if message.value is None else [message.value]))
        elif isinstance(message, Inquire):
            self._answers.append(Listed(message.number, [(name, "committed") for name in self._checkpoints.names]))

    def receive(self, timeout_s: float | None) -> FromRunner:  # noqa: ARG002  # as in `session.Link`
        """Return the answer to the collective sent last."""
        if not self._answers:
            raise TimeoutError
        return self._answers.pop()

    def abandon(self) -> None:
        """There is nothing to close."""


def run_locally(
    job: Job,
    function: Callable[..., object] | str,
    storage_dir: Path,
    filesystem: object | None = None,
    datasets: bytes | None = None,
) -> Result:
    """Call the training function here, and return its result; what it raises is raised as it is."""
    named = isinstance(function, str)
    entrypoint = load_entrypoint(job.entrypoint, Path.cwd()) if named else checked(str(job.name), function)
    checkpoints = LocalCheckpoints(job, storage_dir, filesystem)
    link = LocalLink(checkpoints)
    start = Start(
        run=str(job.id),
        name=job.name or "",
        attempt=1,
        rank=0,
        life=1,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        entrypoint=job.entrypoint,
        storage=checkpoints.spec,
        checkpointing=job.checkpoint,
        datasets=datasets,
    )
    session = Session(link, start, Go(checkpoint=checkpoints.begins_from, first_index=checkpoints.first_index))
    began_s = time.monotonic()
    activate(session)
    try:
        config = {name: unpack(value) for name, value in job.config.items()}
        returned = entrypoint.function(*[config] if entrypoint.takes_config else [])
        session.finish()
    finally:
        activate(None)
    return Result(
        run=str(job.id),
        state="finished",
        reason="ran in this process: num_workers is 0",
        metrics=None if link.metrics is None else {name: unpack(value) for name, value in link.metrics.items()},
        return_value=returned,
        error=None,
        attempts=1,
        duration_s=time.monotonic() - began_s,
        path=checkpoints.storage.root,
        checkpoint=checkpoints.latest,
    )
