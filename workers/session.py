"""What a training function calls: `report`, `get_context`, `get_checkpoint` and the small collectives.

One session is active in a rank process while its training function runs; every function here raises
`NotInTrainingFunctionError` (a `RuntimeError`) at any other time, and in processes forked from the rank.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from runfold.events.base import Json
from runfold.events.values import Unencodable, pack
from runfold.workers import pausing
from runfold.workers.around import Around
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.context import TrainContext
from runfold.workers.errors import (
    LinkError,
    MetricsError,
    NotInTrainingFunctionError,
)
from runfold.workers.given import ValidationTaskConfig, data_of, wished
from runfold.workers.limits import REPLY_MARGIN_S
from runfold.workers.link import (
    Asked,
    Collect,
    Collected,
    CollectiveKind,
    FromRunner,
    Go,
    Inquire,
    Listed,
    Noticed,
    Refused,
    Start,
    Wish,
)
from runfold.workers.payload import pickled, refusal, unpickled
from runfold.workers.reporter import Files, Link, Reporter
from runfold.workers.storage import Storage, check_name, open_storage
from runfold.workers.upload import holds
from runfold.workers.waits import waiting

UNSET_TIMEOUT: Final = -math.inf
"""As `timeout_s`: the run's `collective_timeout_s`."""


class CheckpointUploadMode(Enum):
    """When a reported checkpoint is uploaded."""

    SYNC = "sync"
    ASYNC = "async"
    NO_UPLOAD = "no_upload"


class Session:
    """The state behind the functions of this module in one rank process."""

    def __init__(self, link: Link, start: Start, go: Go | None = None, around: Around | None = None) -> None:
        self._link = link
        pausing.attach(link)
        self._around = around or Around()
        self._start = start
        self._go = go or Go()
        self._storage = open_storage(start.storage) if start.storage is not None else None
        self._reporter = Reporter(link, start, self._storage, self._go.first_index, self._around)
        self.data = data_of(start, self._storage, self._go.checkpoint)
        self._collectives = 0
        self._collecting = threading.Lock()
        self._asked = False
        self._wish: str | None = None
        self._granted: str | None = None
        self._noticed = Noticed()
        self.context = TrainContext(start, self._storage)

    @property
    def reports(self) -> int:
        """How many reports have gone out."""
        return self._link.reports

    def report(self, metrics: Mapping[str, object], files: Files | None = None) -> None:
        """Send one report; returns when the kernel has it, and its files are uploaded unless that is done beside."""
        packed = _pack_metrics(metrics)
        step = packed.get("step")
        at = step if type(step) is int else None
        mark = self.data.mark() if self.data is not None else None
        if files is None:
            self._reporter.report(at, packed, mark)
            return
        self._granted = self._wish
        # What the rank waits here is told with its next report: this one has its place in line already.
        with waiting("checkpoint_save"):
            self._reporter.report_files(at, packed, files, mark)

    @property
    def around(self) -> Around:
        """The callbacks of this rank."""
        return self._around

    @property
    def validates(self) -> bool:
        """Whether this run can validate checkpoints."""
        return self._start.validates

    def finish(self) -> None:
        """Wait until every report has gone out, with its files."""
        self._reporter.finish()

    def give_up(self) -> None:
        """Send every report that still waits for an upload, without its files."""
        self._reporter.give_up()

    @property
    def storage(self) -> Storage:
        """The run's storage; `StorageError` when there is none."""
        return self._reporter.storage

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that this rank reported last, or the one to begin from."""
        if not self._asked:
            self._asked = True
            self._link.send(Asked())
        latest, verify = self._reporter.latest, self._start.checkpointing.verify_on_download
        name = latest or self._go.checkpoint
        return None if name is None else self.storage.checkpoint(name, verify=verify, committed=latest is None)

    def wishes_checkpoint(self) -> bool:
        """Whether somebody wants a checkpoint, and this rank has not reported one since."""
        self._listen()
        return self._wish is not None and self._wish != self._granted

    def noticed(self) -> Noticed:
        """Return which nodes of the group will be taken back, as far as it is known here."""
        self._listen()
        return self._noticed

    def _listen(self) -> None:
        # While another thread waits for a collective it reads the link, and notes what comes.
        if self._collecting.acquire(blocking=False):
            try:
                while True:
                    self._note(self._link.receive(0.0))
            except TimeoutError:
                pass
            finally:
                self._collecting.release()

    def _note(self, message: FromRunner) -> None:
        match message:
            case Wish(id=wish):
                self._wish = wish
            case Noticed():
                self._noticed = message
            case _:
                pass

    def abandon(self) -> None:
        """Let go of the rank's link, in a process that was forked from the rank."""
        self._link.abandon()

    def collect(self, kind: CollectiveKind, value: bytes | None, timeout_s: float | None) -> list[bytes]:
        """Take part in the next collective and return its values, once all ranks have arrived."""
        limit_s = self._start.collective_timeout_s if timeout_s == UNSET_TIMEOUT else timeout_s
        if limit_s is not None and not limit_s > 0:
            raise ValueError(f"timeout_s: must be more than 0 seconds or None, not {limit_s!r}")
        # One at a time: two threads take part in two collectives, in the order in which they come.
        with self._collecting:
            number = self._collectives = self._collectives + 1
            self._link.send(Collect(number, kind, value, limit_s))
            answer = self._answer(number, kind, limit_s)
        if isinstance(answer, Refused):
            raise refusal(answer, limit_s)
        return answer.values

    def inquire(self, *, validated: bool, timeout_s: float | None) -> Listed:
        """Ask which checkpoints the run has, once what this rank has reported is dealt with; or what is known by then.

        `validated`: and once nothing is being validated.
        """
        with self._collecting:
            number = self._collectives = self._collectives + 1
            self._link.send(Inquire(number, self._link.reports, validated, timeout_s))
            deadline = None if timeout_s is None else time.monotonic() + timeout_s + REPLY_MARGIN_S
            while True:
                try:
                    answer = self._link.receive(None if deadline is None else deadline - time.monotonic())
                except TimeoutError:
                    raise LinkError("the runner of this rank did not say which checkpoints there are") from None
                self._note(answer)
                if isinstance(answer, Listed) and answer.number == number:
                    return answer

    def _answer(self, number: int, kind: str, limit_s: float | None) -> Collected | Refused:
        deadline = None if limit_s is None else time.monotonic() + limit_s + REPLY_MARGIN_S
        while True:
            try:
                answer = self._link.receive(None if deadline is None else deadline - time.monotonic())
            except TimeoutError:
                raise LinkError(
                    f"{kind} #{number}: the runner of this rank did not answer, not even that time was up"
                ) from None
            self._note(answer)
            # An older number is the answer to one that was left by an interrupt.
            if isinstance(answer, Collected | Refused) and answer.number == number:
                return answer


_active: Session | None = None


def activate(session: Session | None) -> None:
    """Make this the session of the process; None ends it. Called by the rank process alone."""
    global _active  # noqa: PLW0603  # the session is the process's: a training function may use any thread
    _active = session
    if session is None:
        pausing.attach(None)


def _left_behind() -> None:
    # A process forked from the rank shares its socket: one message from it would corrupt the rank's own.
    if _active is not None:
        _active.abandon()
        activate(None)


os.register_at_fork(after_in_child=_left_behind)


def current(caller: str) -> Session:
    """Return the session of this process; raise `NotInTrainingFunctionError` naming the function that needs one."""
    return _session(caller)


def _session(caller: str) -> Session:
    if _active is None:
        raise NotInTrainingFunctionError(
            f"runfold.{caller}() can only be called in a training function that runfold runs, in the process of "
            "the rank itself (its threads, but no process started from it)"
        )
    return _active


def _pack_metrics(metrics: Mapping[str, object]) -> dict[str, Json]:
    try:
        packed = pack(metrics, "metrics")
    except Unencodable as error:
        raise MetricsError(str(error)) from None
    if not isinstance(packed, dict):
        raise MetricsError(f"metrics must be a dict, not {type(metrics).__name__!r}")
    return packed


def _checkpoint(given: object) -> Checkpoint:
    if not isinstance(given, Checkpoint):
        raise ValueError(f"checkpoint: must be a Checkpoint, not {type(given).__name__}")
    return given


def report(
    metrics: Mapping[str, object],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
    validation: bool | ValidationTaskConfig = False,
) -> None:
    """Record metrics: numbers, numpy and torch scalars, booleans, strings, None, dicts and lists of them.

    Costs microseconds and waits for nobody. A number under the key `step` is shown as the rank's step. A value
    that cannot be recorded raises `MetricsError` naming its key.

    With a checkpoint, its files go into the report's directory in the run's storage: `checkpoint_<index>_<attempt>`,
    the same for every rank that reports equally often, or `checkpoint_dir_name`. It counts once every rank has passed
    the report. SYNC uploads first, ASYNC beside the training (then the local directory is deleted afterwards unless
    told otherwise), NO_UPLOAD takes files that lie in the storage already. `checkpoint_upload_fn(checkpoint, name)`
    uploads by itself and returns where. Raises `UploadError` when an upload failed, also after all retries:
    what was reported with it is recorded all the same. `validation`: the checkpoint is validated once it counts.
    """
    session = _session("report")
    wish = wished(validation, with_checkpoint=checkpoint is not None, validates=session.validates)
    if checkpoint is None:
        with session.around.context("on_report"):
            session.report(metrics)
        return
    checkpoint = _checkpoint(checkpoint)
    mode = CheckpointUploadMode(checkpoint_upload_mode)
    is_async = mode is CheckpointUploadMode.ASYNC
    delete = is_async if delete_local_checkpoint_after_upload is None else delete_local_checkpoint_after_upload
    if checkpoint_dir_name is not None:
        check_name(checkpoint_dir_name)
    if delete and holds(checkpoint, session.storage):
        raise ValueError(
            f"delete_local_checkpoint_after_upload: the run's storage {session.storage.root} lies in {checkpoint.path}"
        )
    in_place = mode is CheckpointUploadMode.NO_UPLOAD
    if not in_place and checkpoint.files.local and not checkpoint.files.exists(checkpoint.path):
        raise FileNotFoundError(f"checkpoint: there is no directory {checkpoint.path}")
    files = Files(
        checkpoint=checkpoint,
        mode=mode.value,
        name=None if in_place else checkpoint_dir_name,
        upload_fn=None if in_place else checkpoint_upload_fn,
        discard=delete and not in_place,
        validation=wish,
    )
    with session.around.context("on_report"):
        session.report(metrics, files)


def should_checkpoint(*, together: bool = False) -> bool:
    """Whether somebody asked for a checkpoint and this rank has not reported one since.

    Costs microseconds and is no collective: it may turn true a step earlier in one rank than in another. Where several
    ranks save parts of one checkpoint, `together` gives all of them rank 0's answer; then every rank must call it.
    """
    wished = _session("should_checkpoint").wishes_checkpoint()
    return bool(broadcast_from_rank_zero(wished)) if together else wished


def get_context() -> TrainContext:
    """Return who this rank is, and in which run."""
    return _session("get_context").context


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint that this rank has reported last; at first the one to continue from, None if there is none.

    Call it before anything else: after a restart training goes on from there.
    """
    return _session("get_checkpoint").checkpoint()


def barrier(timeout_s: float | None = UNSET_TIMEOUT) -> None:
    """Wait until every rank has called this; `CollectiveTimeoutError` names those that did not in time.

    `timeout_s` defaults to the run's `collective_timeout_s`; None waits for ever.
    """
    _session("barrier").collect("barrier", None, timeout_s)


def broadcast_from_rank_zero(data: object, timeout_s: float | None = UNSET_TIMEOUT) -> object:
    """Return rank 0's `data` in every rank; what the others give is not looked at. Every rank must call it."""
    session = _session("broadcast_from_rank_zero")
    kind: CollectiveKind = "broadcast_from_rank_zero"
    is_source = session.context.get_replica_rank() == 0
    values = session.collect(kind, pickled(kind, data) if is_source else None, timeout_s)
    return data if is_source else unpickled(values[0])


def all_gather(data: object, timeout_s: float | None = UNSET_TIMEOUT) -> list[object]:
    """Return what every rank gave, in the order of their numbers. Every rank must call it."""
    session = _session("all_gather")
    values = session.collect("all_gather", pickled("all_gather", data), timeout_s)
    return [unpickled(value) for value in values]
