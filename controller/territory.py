"""The storage path of a run: one live run on one broker writes there."""

from __future__ import annotations

import hashlib
import posixpath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runfold.events.job import Job

KEY_PREFIX: Final = "storage."
_FILE: Final = "file://"


def local_path(job: Job) -> str | None:
    """Return the directory of a resolved job's storage where that is one of this machine: a link may lead elsewhere."""
    where = job.storage_path
    if where is None or job.storage_filesystem is not None or not (where.startswith(_FILE) or "://" not in where):
        return None
    path = posixpath.join(job.working_dir or ".", where.removeprefix(_FILE), job.storage_name or job.id or "")
    # Where relative ones begin, the pool says.
    return path if posixpath.isabs(path) else None


def storage_key(job: Job, real: str | None = None) -> str | None:
    """Return the key in OWNERS that stands for a resolved job's storage; None for one that is the run's alone.

    `real` is where `local_path` leads.
    """
    name = job.storage_name or job.id or ""
    if job.storage_path is None and name == job.id:
        return None
    where = job.storage_path
    if where is None:
        where = f"the default of pool {job.pool}"
    elif real is not None:
        where, name = posixpath.split(posixpath.normpath(real))
    elif where.startswith(_FILE) or "://" not in where:
        where = posixpath.normpath(posixpath.join(job.working_dir or ".", where.removeprefix(_FILE)))
    else:
        where = where.rstrip("/")
    given = job.storage_filesystem or ""
    return KEY_PREFIX + hashlib.sha256(f"{given}\n{where}\n{name}".encode()).hexdigest()[:32]


def shown_storage(job: Job) -> str:
    """Return a job's storage for people."""
    return f"{job.storage_path or f'the default storage of pool {job.pool}'}, directory {job.storage_name}"
