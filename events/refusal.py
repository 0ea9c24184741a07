"""A job that was not taken: what `runfold.jobs.refused.<sequence>` holds."""

from __future__ import annotations

from typing import Literal

from runfold.events.base import Document


class JobRefused(Document, frozen=True, kw_only=True):
    """Why a published job became no run.

    `sequence`: its number in JOBS. `path` of the offender in the job (`$`: the whole) and the `reason`, for people.
    `sha256` (hex) and `size_bytes` of what was published; `excerpt`: its first 1 KiB, unprintable bytes escaped.
    `run`: the id it asked for, where it could be read.
    """

    v: int = 1
    kind: Literal["job_refused"] = "job_refused"
    sequence: int
    run: str | None = None
    path: str
    reason: str
    sha256: str
    size_bytes: int
    excerpt: str
    at: str
    by: str
