"""The job: what is published on `runfold.jobs.submit`, checked, completed and digested."""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal

import msgspec

from runfold.events.backends import check_options
from runfold.events.base import Document, Json
from runfold.events.config import (
    BackendConfig,
    CheckpointConfig,
    FailureConfig,
    HooksConfig,
    ScalingConfig,
    Timeouts,
    ValidationSpec,
)
from runfold.events.gates import GATES
from runfold.events.limits import JOB_MAX_BYTES
from runfold.events.pools import LOCAL_POOL
from runfold.events.strict import Refused, decode_strict

RUN_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NUMBERED_ID: Final = re.compile(r"job-[0-9]+")
_MODULE_ENTRY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_FILE_ENTRY: Final = re.compile(r"[^\x00-\x1f]+\.py:[A-Za-z_][\w.]*")
NAME_MAX_CHARS: Final = 128
NAME_MAX_BYTES: Final = 240
"""A directory's name has at most 255 on every file system; what is put beside it in its making has some more."""

NAME_SHOWN_MAX_CHARS: Final = 40
_DIRECTORY: Final = re.compile(rf"[^./\\\x00-\x1f][^/\\\x00-\x1f]{{0,{NAME_MAX_CHARS - 1}}}")
_BLOB_ENTRY: Final = re.compile(r"blob:sha256:[0-9a-f]{64}")


class Job(Document, frozen=True, kw_only=True):
    """A request for a run. Only `entrypoint` is required.

    `entrypoint` is `module:function`, `path/file.py:function` (looked up with `working_dir` first) or
    `blob:sha256:<digest>` of a pickled function in the object store. `config` is packed (see `values.py`).
    The run's directory is `storage_name` (default: the name if there is one, else the id) within `storage_path`
    (default: in the data directory of the pool); runs that share it continue each other. `storage_options` go to
    fsspec and stand in the log, so put secrets into `secret_env`; `storage_filesystem` is the blob of a pickled one.
    `datasets` is the blob of pickled data sets. `warm_restarts`: ranks of later attempts are forked from a process that
    has imported what those of the first have. `runtime_env` is what a Ray cluster prepares on each node (see Ray).
    """

    v: Literal[1] = 1
    kind: Literal["submit_run"] = "submit_run"
    id: str | None = None
    name: str | None = None
    entrypoint: str
    config: dict[str, Json] = {}
    scaling: ScalingConfig = ScalingConfig()
    failure: FailureConfig = FailureConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    timeouts: Timeouts = Timeouts()
    backend: BackendConfig = BackendConfig()
    storage_path: str | None = None
    storage_name: str | None = None
    storage_options: dict[str, Json] = {}
    storage_filesystem: str | None = None
    metrics_ranks: Literal["zero", "all"] = "zero"
    validation: ValidationSpec | None = None
    hooks: HooksConfig = HooksConfig()
    datasets: str | None = None
    warm_restarts: bool = True
    pool: str = LOCAL_POOL
    runtime_env: dict[str, Json] = {}
    env: dict[str, str] = {}
    secret_env: tuple[str, ...] = ()
    working_dir: str | None = None
    labels: dict[str, str] = {}
    priority: int = 0
    requested_by: str | None = None


def decode_job(data: bytes) -> Job:
    """Return the job of a published message.

    Raises `Refused` with the path of the offender for anything that is not exactly a job, `job_max_bytes` included.
    """
    if len(data) > JOB_MAX_BYTES:
        raise Refused("$", f"{len(data)} bytes, more than job_max_bytes ({JOB_MAX_BYTES})")
    job = decode_strict(data, Job)
    _check(job)
    return job


def encode_job(job: Job) -> bytes:
    """Return the bytes to publish: the same bytes for the same job, always."""
    return msgspec.json.encode(job, order="deterministic")


def job_digest(job: Job) -> str:
    """Return the SHA-256 (hex) that tells whether two jobs ask for the same run."""
    return hashlib.sha256(encode_job(job)).hexdigest()


def resolve_job(job: Job, sequence: int) -> Job:
    """Return the job with its id and name filled in; `sequence` is its number in JOBS. Idempotent."""
    run = job.id or f"job-{sequence}"
    name = job.name or job.entrypoint.rpartition(":")[2]
    return msgspec.structs.replace(job, id=run, name=name, storage_name=job.storage_name or job.name or run)


def check_run_id(run: str) -> None:
    """Raise `Refused` when `run` is no legal run id."""
    if not RUN_ID.fullmatch(run):
        raise Refused("$.id", f"{run!r} is no run id: lower-case letters, digits and '-', at most 63, no '-' first")


def check_job(job: Job) -> None:
    """Raise `Refused` when a job made in Python could not be published."""
    _check(job)
    try:
        size = len(encode_job(job))
    except UnicodeEncodeError as error:
        raise Refused("$", f"holds half a character, which no message can: {error.object!r}") from None
    if size > JOB_MAX_BYTES:
        raise Refused("$", f"{size} bytes, more than job_max_bytes ({JOB_MAX_BYTES})")


def _check(job: Job) -> None:
    if job.id is not None:
        check_run_id(job.id)
        if _NUMBERED_ID.fullmatch(job.id):
            raise Refused("$.id", f"{job.id!r}: ids 'job-<digits>' are given by runfold and cannot be asked for")
    for path, entrypoint in _entrypoints(job):
        if not any(form.fullmatch(entrypoint) for form in (_FILE_ENTRY, _MODULE_ENTRY, _BLOB_ENTRY)):
            if entrypoint.endswith(".py"):
                raise Refused(path, f"{entrypoint!r} names no function: write it as {entrypoint}:function")
            raise Refused(path, f"{entrypoint!r} is none of module:function, file.py:function, blob:sha256:<digest>")
    for hook in job.hooks.gates:
        if hook not in GATES:
            raise Refused(f"$.hooks.gates.{hook}", f"is no hook that can be a gate; those are {', '.join(GATES)}")
    if job.scaling.max_workers < 1 or job.scaling.min_workers < 1:
        raise Refused(
            "$.scaling.num_workers",
            f"must be at least 1, not {job.scaling.min_workers}: local mode (0) is had by Trainer(…).fit() in Python",
        )
    check_options(job.backend)
    for name in ("pool", *job.secret_env, *job.env):
        if not name or any(c in name for c in "=\x00"):
            raise Refused("$.env", f"{name!r} is no name of an environment variable")
    _refuse_nul(job)
    for field, given in (("name", job.name), ("storage_name", job.storage_name)):
        if given is not None and not _is_directory(given):
            shown = given if len(given) <= NAME_SHOWN_MAX_CHARS else f"{given[:NAME_SHOWN_MAX_CHARS]}…"
            size = f"1 to {NAME_MAX_CHARS} characters of {NAME_MAX_BYTES} bytes at most"
            raise Refused(
                f"$.{field}", f"{shown!r} is no name: it becomes a directory, so {size}, no '/', no '.' first"
            )
    for field, given in (("storage_filesystem", job.storage_filesystem), ("datasets", job.datasets)):
        if given is not None and not _BLOB_ENTRY.fullmatch(given):
            raise Refused(f"$.{field}", f"{given!r} is no blob:sha256:<digest>")
    if not RUN_ID.fullmatch(job.pool):
        raise Refused("$.pool", f"{job.pool!r} is no pool name: lower-case letters, digits and '-'")


def _is_directory(name: str) -> bool:
    # Half a character is told of with the rest of the job.
    return _DIRECTORY.fullmatch(name) is not None and len(name.encode(errors="surrogatepass")) <= NAME_MAX_BYTES


def _refuse_nul(job: Job) -> None:
    """No path and no variable can hold one: the kernel's strings end there."""
    paths = {"working_dir": job.working_dir, "storage_path": job.storage_path}
    values = {f"env.{name}": value for name, value in job.env.items()}
    for field, given in (paths | values).items():
        if given is not None and "\x00" in given:
            raise Refused(f"$.{field}", "holds a NUL character, which no path or variable can")


def _entrypoints(job: Job) -> tuple[tuple[str, str], ...]:
    validation = (("$.validation.entrypoint", job.validation.entrypoint),) if job.validation is not None else ()
    callbacks = ((f"$.hooks.callbacks[{i}]", callback) for i, callback in enumerate(job.hooks.callbacks))
    return (("$.entrypoint", job.entrypoint), *validation, *callbacks)
