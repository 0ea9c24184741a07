"""What runs in tests are asked to do, before they begin; and what their ranks fail by."""

from __future__ import annotations

from runfold.events.config import FailureConfig, ScalingConfig, Timeouts
from runfold.events.failures import ErrorInfo, FailureKind
from runfold.events.job import Job, job_digest
from runfold.events.state import Unborn


def job(
    workers: int | tuple[int, int] = 2,
    *,
    failure: FailureConfig | None = None,
    timeouts: Timeouts | None = None,
    run: str = "digits",
) -> Job:
    """Return a resolved job."""
    return Job(
        id=run,
        name="train",
        entrypoint="digits:train",
        scaling=ScalingConfig(num_workers=workers),
        failure=failure or FailureConfig(),
        timeouts=timeouts or Timeouts(),
    )


def unborn(asked: Job) -> Unborn:
    """Return the state before entry 0 of a job."""
    return Unborn(job=asked, digest=job_digest(asked), jobs_sequence=1)


def error(message: str = "boom", kind: FailureKind = "user", type_: str = "RuntimeError") -> ErrorInfo:
    """Return an error as a rank tells it."""
    return ErrorInfo(type=type_, message=message, kind=kind, traceback=f"Traceback\n{type_}: {message}")
