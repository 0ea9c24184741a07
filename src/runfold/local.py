"""Local mode (`num_workers=0`): the training function runs in this process, with the calls, log and result of any run.

What it raises is raised as it is, so that a debugger stops where it happened, and nothing is tried again: the failure
budgets are 0. Gates are not asked; what is printed goes where it always does, so `runfold logs` has nothing of it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runfold.events.config import FailureConfig, HooksConfig
from runfold.events.facts import Reported
from runfold.events.job import resolve_job
from runfold.events.nats.blobs import blob_digest
from runfold.events.values import unpack
from runfold.keepsake import keep, spec_of, storage_of
from runfold.localrun import NODE, LocalRun
from runfold.locate import STORAGE_FOLDER
from runfold.replay.archive import archive_path, write_archive
from runfold.result import result_of
from runfold.workers.around import Around
from runfold.workers.capture import Capture
from runfold.workers.config import environment
from runfold.workers.errors import StorageError
from runfold.workers.link import Asked, Collect, Collected, Inquire, Listed, Report, Start, Uploading
from runfold.workers.load import BLOB_PREFIX, Entrypoint, checked, framework_versions, load_entrypoint
from runfold.workers.rank import pack_value
from runfold.workers.session import Session, activate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runfold.events.checkpoints import CheckpointState
    from runfold.events.job import Job
    from runfold.events.state import RunState
    from runfold.follow import Onlooker
    from runfold.locate import Where as Found
    from runfold.result import Result
    from runfold.workers.layout import StorageSpec
    from runfold.workers.link import FromRank, FromRunner, Go

_NO_RETRIES: Final = FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0, max_hangs=0)
_LOG: Final = logging.getLogger("runfold")


@dataclass(frozen=True, slots=True)
class LocalOrder:
    """What is to be run in this process. `blobs` are what the job names; `callbacks` have the hooks of its one rank."""

    job: Job
    function: Callable[..., object] | str
    where: Found
    onlooker: Onlooker
    blobs: Sequence[bytes] = ()
    datasets: bytes | None = None
    filesystem: object | None = None
    callbacks: Sequence[object] = ()


class LocalLink:
    """Answers what a rank alone in its group says: reports go into the log, collectives return its own value."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run
        self.lock = run.lock
        self.reports = 0
        self._answers: list[FromRunner] = []
        self._unread = run.state.checkpoint is not None

    def send(self, message: FromRank, limit_bytes: int = 0) -> None:  # noqa: ARG002  # as in `session.Link`
        """Take what the rank says; answer what it asks."""
        match message:
            case Report():
                self.reports += 1
                self._run.reported(self._fact(message))
            case Uploading(index=index):
                self._run.uploading(index)
            case Asked():
                self._unread = False
            case Collect():
                self._answers.append(Collected(message.number, [] if message.value is None else [message.value]))
            case Inquire():
                self._run.flush()
                kept = self._run.state.checkpoints.kept
                known: list[tuple[str, CheckpointState]] = [(one.name, one.status) for one in kept]
                self._answers.append(Listed(message.number, known))
            case _:
                pass

    def receive(self, timeout_s: float | None) -> FromRunner:  # noqa: ARG002  # as in `session.Link`
        """Return the answer to what was asked last."""
        if not self._answers:
            raise TimeoutError
        return self._answers.pop()

    def abandon(self) -> None:
        """There is nothing to close."""

    def was_unread(self) -> bool:
        """Whether the rank was given a checkpoint and has gone on without it; said once."""
        unread, self._unread = self._unread, False
        return unread

    def _fact(self, report: Report) -> Reported:
        return Reported(
            **self._run.about_rank(report.clock_s),
            index=report.index,
            step=report.step,
            metrics=report.metrics,
            checkpoint=report.checkpoint,
            named=report.named,
            unread=self.was_unread(),
            upload_error=report.upload_error,
            validation=report.validation,
            cursor=report.cursor,
            spent_s=report.spent_s,
        )


def run_locally(order: LocalOrder) -> tuple[Result, RunState]:
    """Call the training function here, and return its result and the last state.

    What it raises is raised as it is; its log is kept all the same.
    """
    job = resolve_job(msgspec.structs.replace(order.job, failure=_NO_RETRIES, hooks=HooksConfig()), 0)
    storage_dir = order.where.data_dir / STORAGE_FOLDER
    spec = spec_of(job, storage_dir, order.filesystem)
    if spec is None:
        raise ValueError("storage_filesystem: the job names one that is not given")
    run = LocalRun(job, spec, order.onlooker, {blob_digest(blob).rpartition(":")[2]: blob for blob in order.blobs})
    try:
        value, returned = _trained(order, job, run, spec)
    except BaseException as error:
        if run.state.terminal:
            error.add_note(f"runfold: {run.state.phase.reason}; its story: {order.where.hint('replay', run.state.run)}")
        raise
    finally:
        _keep(order, run)
    result = result_of(
        run.state, blob=returned, where=order.where, filesystem=order.filesystem, history=lambda: run.history
    )
    return result.returning(value), run.state


def _trained(order: LocalOrder, job: Job, run: LocalRun, spec: StorageSpec) -> tuple[object, bytes | None]:
    if (why := run.unstarted()) is not None:
        raise StorageError(why)
    with _told(run, loading=True), environment(job.env):
        loaded = _loaded(order.function, job)
    start = _start(job, spec, order.datasets)
    go = run.started(loaded.digest, framework_versions())
    link = LocalLink(run)
    with _told(run, loading=False), environment({**job.env, **start.env}):
        value = _called(loaded, start, go, link, Around(order.callbacks))
        packed, blob = pack_value(value)
    run.flush()
    run.returned(link.reports, packed, blob, None if blob is None else blob_digest(blob))
    return value, blob


@contextmanager
def _told(run: LocalRun, *, loading: bool) -> Iterator[None]:
    """Tell the log what is raised, before it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        run.interrupted("interrupted by its user")
        raise
    except BaseException as error:
        run.flush()
        run.failed(error, loading=loading)
        raise


def _loaded(function: Callable[..., object] | str, job: Job) -> Entrypoint:
    if isinstance(function, str):
        return load_entrypoint(job.entrypoint, Path.cwd())
    digest = job.entrypoint.removeprefix("blob:") if job.entrypoint.startswith(BLOB_PREFIX) else None
    return checked(job.entrypoint, function, digest)


def _called(loaded: Entrypoint, start: Start, go: Go, link: LocalLink, around: Around) -> object:
    session = Session(link, start, go, around)
    activate(session)
    try:
        around.call("after_init_train_context")
        config = {name: unpack(value) for name, value in start.config.items()}
        value = loaded.function(*[config] if loaded.takes_config else [])
        session.finish()
        around.call("before_worker_shutdown")
    except BaseException:
        session.give_up()
        raise
    finally:
        activate(None)
    return value


def _start(job: Job, spec: StorageSpec, datasets: bytes | None) -> Start:
    given = {"RUN": job.id, "ATTEMPT": 1, "RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    return Start(
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
        config=job.config,
        env={f"RUNFOLD_{name}": str(value) for name, value in {**given, "NODE_RANK": 0, "NODE": NODE}.items()},
        storage=spec,
        checkpointing=job.checkpoint,
        validates=job.validation is not None,
        datasets=datasets,
    )


def _keep(order: LocalOrder, run: LocalRun) -> None:
    """Archive the log, and put it beside its checkpoints; what goes wrong is only told."""
    history, state = run.history, run.state
    with Capture() as keeping:
        write_archive(history, archive_path(order.where.data_dir, state.run), blobs=run.blobs)
        storage = storage_of(state.job, order.where.data_dir / STORAGE_FOLDER, order.filesystem)
        keep(history, state, storage, run.blobs)
    if keeping.error is not None:
        _LOG.warning("the log of %s was not kept: %s", state.run, keeping.error)
