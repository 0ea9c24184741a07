"""Reports of a rank, in the order in which they were made: those with files wait for their upload, others for them.

A report takes its place in line when it is made, and goes out when all before it have: a place once taken is always
told of, with or without files, so that the indices of all ranks go on meaning the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Literal, Protocol, cast

import msgspec

from runfold.events.base import Json
from runfold.events.checkpoints import ValidationWish
from runfold.events.limits import VALUE_INLINE_MAX_BYTES
from runfold.workers.around import Around
from runfold.workers.capture import Capture
from runfold.workers.checkpoint import Checkpoint
from runfold.workers.errors import CheckpointNameError, MetricsError, StorageError, UploadError
from runfold.workers.files import transient
from runfold.workers.link import FromRank, FromRunner, Report, Start, Uploading
from runfold.workers.processes import tell
from runfold.workers.ranklink import MessageTooLarge
from runfold.workers.storage import Storage, check_name, default_name
from runfold.workers.upload import Author, Uploads, discard
from runfold.workers.waits import TELL_EVERY_S, taken, told_on

ASYNC_FAILURES_MAX_COUNT: Final = 3
"""Asynchronous uploads that may fail in a row, unless `upload_failure_limit` says otherwise."""
REPORTS_HELD_MAX_COUNT: Final = 10_000
"""Reports that wait behind an upload; the next one waits itself."""
GIVEN_UP: Final = "its rank failed before its files were uploaded"
_SURELY_SMALL_BYTES: Final = VALUE_INLINE_MAX_BYTES // 6
"""As JSON a message is at most six times as long."""


class Link(Protocol):
    """What a session speaks through: the socket to a runner (`RankLink`), or what stands in for it."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a report is numbered and sent; re-entrant."""
        ...

    @property
    def reports(self) -> int:
        """How many reports have gone out: the index of the next one."""
        ...

    def send(self, message: FromRank, limit_bytes: int = ...) -> None:
        """Send a message; `MessageTooLarge` when it is over the limit."""
        ...

    def receive(self, timeout_s: float | None) -> FromRunner:
        """Return the next message; `TimeoutError` after `timeout_s`."""
        ...

    def abandon(self) -> None:
        """Let go of it, in a process that was forked from the rank."""
        ...


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a report, and how they get into the storage."""

    checkpoint: Checkpoint
    mode: Literal["sync", "async", "no_upload"]
    name: str | None = None
    upload_fn: Callable[[Checkpoint, str], object] | None = None
    discard: bool = False
    validation: ValidationWish | None = None


class _Place:
    """A report's place in line. `ready`: it may go out as it is."""

    __slots__ = (
        "checkpoint",
        "clock_s",
        "cursor",
        "error",
        "index",
        "metrics",
        "named",
        "ready",
        "spent_s",
        "step",
        "validation",
    )

    def __init__(
        self, index: int, step: int | None, metrics: dict[str, Json], cursor: str | None, *, ready: bool
    ) -> None:
        self.index = index
        self.clock_s = time.monotonic()
        self.step = step
        self.metrics = metrics
        self.ready = ready
        self.checkpoint: str | None = None
        self.named = False
        self.error: str | None = None
        self.validation: ValidationWish | None = None
        self.cursor = cursor
        self.spent_s = taken()


class Reporter:
    """All reports of a rank. `latest` is the checkpoint that this rank has reported last."""

    def __init__(
        self, link: Link, start: Start, storage: Storage | None, first_index: int = 0, around: Around | None = None
    ) -> None:
        self._around = around or Around()
        self.latest: str | None = None
        self._link = link
        self._start = start
        self._storage = storage
        self._first_index = first_index
        self._line: deque[_Place] = deque()
        self._moved = threading.Condition(cast("threading.RLock", link.lock))
        self._queue: deque[tuple[_Place, Files]] = deque()
        self._uploading = 0
        self._thread: threading.Thread | None = None
        self._failed = 0
        self._fatal: UploadError | None = None
        self._uploads: Uploads | None = None

    @property
    def storage(self) -> Storage:
        """The run's storage; `StorageError` when there is none."""
        if self._storage is None:
            raise StorageError("this run has no storage: nothing was reported")
        return self._storage

    def report(self, step: int | None, metrics: dict[str, Json], cursor: str | None = None) -> None:
        """Send a report without files, or have it wait its turn."""
        link = self._link
        with link.lock:
            if not self._line and self._fatal is None:
                # Numbered and sent under one lock: the runner sees the indices in order, whatever thread reports.
                message = Report(link.reports, time.monotonic(), step, metrics, cursor=cursor, spent_s=taken())
                try:
                    link.send(message, _SURELY_SMALL_BYTES)
                except MessageTooLarge:
                    check_size(metrics)
                    link.send(message)
                return
        self._raise_fatal()
        check_size(metrics)
        self._take(step, metrics, cursor, ready=True)

    def report_files(self, step: int | None, metrics: dict[str, Json], files: Files, cursor: str | None = None) -> None:
        """Upload the files and send the report; returns after both, or at once when they are uploaded beside."""
        self._raise_fatal()
        check_size(metrics)
        _ = self.storage  # before the report has its place in line
        if files.mode == "async":
            limit = self._start.checkpointing.upload_queue_max
            self._wait(lambda: self._uploading < limit, "an earlier upload")
        with self._around.context("on_checkpoint_sync"):
            place = self._take(step, metrics, cursor)
        place.validation = files.validation
        if files.mode == "async":
            self._later(place, files)
            return
        try:
            self._upload(place, files)
        except transient() as error:
            self._fail(place, error)
            limit = self._start.checkpointing.upload_failure_limit or 0
            if self._failed > limit:
                if isinstance(error, FileNotFoundError | StorageError) and not isinstance(error, UploadError):
                    raise
                raise self._upload_error(place, error) from error
        except BaseException as error:
            self._fail(place, error)
            raise
        self._wait(lambda: place not in self._line, "an earlier upload")

    def finish(self) -> None:
        """Wait until everything has gone out. Raises `UploadError` when too many asynchronous uploads failed."""
        self._wait(lambda: not self._line, "the last uploads")
        self._raise_fatal(once=False)

    def give_up(self) -> None:
        """Send what still waits, as it is: the training has failed, and files that are on their way will not arrive."""
        with self._moved:
            self._queue.clear()
            for place in self._line:
                if not place.ready and place.checkpoint is None:
                    place.error = GIVEN_UP
                place.ready = True
            self._advance()

    # --- the line

    def _take(
        self, step: int | None, metrics: dict[str, Json], cursor: str | None = None, *, ready: bool = False
    ) -> _Place:
        self._wait(lambda: len(self._line) < REPORTS_HELD_MAX_COUNT, "earlier reports")
        with self._moved:
            place = _Place(self._link.reports + len(self._line), step, metrics, cursor, ready=ready)
            self._line.append(place)
            self._advance()
        return place

    def _ready(self, place: _Place) -> None:
        with self._moved:
            place.ready = True
            self._advance()

    def _advance(self) -> None:
        """Send what is ready at the head of the line; called with the lock held."""
        while self._line and self._line[0].ready:
            place = self._line[0]
            if place.index >= self._link.reports:  # not sent before an interrupt
                self._link.send(
                    Report(
                        place.index,
                        place.clock_s,
                        place.step,
                        place.metrics,
                        place.checkpoint,
                        place.named,
                        place.error,
                        place.validation if place.checkpoint is not None else None,
                        place.cursor,
                        place.spent_s,
                    )
                )
            if place.checkpoint is not None:
                self.latest = place.checkpoint
            self._line.popleft()
        self._moved.notify_all()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._moved:
            while not self._moved.wait_for(condition, TELL_EVERY_S):
                tell(f"runfold: report has waited {TELL_EVERY_S:g} s for {what}; it waits on")

    # --- uploads

    def _upload(self, place: _Place, files: Files) -> None:
        with self._around.context("on_checkpoint_transfer"), told_on(f"the upload of report {place.index}"):
            name, index = self._transferred(place, files)
        place.checkpoint = name
        place.named = name != default_name(index, self._start.attempt)
        self._failed = 0
        self._ready(place)

    def _transferred(self, place: _Place, files: Files) -> tuple[str, int]:
        storage, uploads = self.storage, self._get_uploads()
        index = self._first_index + place.index
        name = files.name or default_name(index, self._start.attempt)
        checkpoint = files.checkpoint
        if files.mode == "no_upload":
            name = _managed(storage, checkpoint)
        self._link.send(Uploading(name, place.index))
        if files.mode == "no_upload":
            uploads.take(name, index, place.metrics, source=checkpoint)
        elif files.upload_fn is not None:
            returned = files.upload_fn(checkpoint, name)
            if not isinstance(returned, Checkpoint):
                raise ValueError(f"checkpoint_upload_fn: must return a Checkpoint, not {type(returned).__name__}")
            if (found := _managed(storage, returned)) != name:
                name = found
                self._link.send(Uploading(name, place.index))
            uploads.take(name, index, place.metrics, source=checkpoint)
        else:
            uploads.copy(checkpoint, name, index, place.metrics, named=files.name is not None)
        if files.discard:
            discard(checkpoint)
        return name, index

    def _get_uploads(self) -> Uploads:
        if self._uploads is None:
            start = self._start
            author = Author(run=start.run, attempt=start.attempt, rank=start.rank, life=start.life, node=start.node)
            self._uploads = Uploads(self.storage, author, start.checkpointing)
        return self._uploads

    def _fail(self, place: _Place, error: BaseException) -> None:
        self._failed += 1
        place.error = _what(error).replace("\n", "; ")[:VALUE_INLINE_MAX_BYTES]
        tell(f"runfold: the checkpoint of report {place.index} was not uploaded: {place.error}")
        self._ready(place)

    def _upload_error(self, place: _Place, error: BaseException) -> UploadError:
        times = f", {self._failed} times in a row" if self._failed > 1 else ""
        return UploadError(
            f"the checkpoint of report {place.index} was not uploaded{times}: {_what(error)}. "
            "What was reported with it is recorded"
        )

    def _raise_fatal(self, *, once: bool = True) -> None:
        """Raise what asynchronous uploads have failed with too often; `once`: then they are counted anew."""
        fatal = self._fatal
        if fatal is not None:
            if once:
                self._fatal, self._failed = None, 0
            raise fatal

    def _later(self, place: _Place, files: Files) -> None:
        with self._moved:
            self._uploading += 1
            self._queue.append((place, files))
            if self._thread is None:
                self._thread = threading.Thread(target=self._upload_beside, name="runfold-uploads", daemon=True)
                self._thread.start()
            self._moved.notify_all()

    def _upload_beside(self) -> None:
        while True:
            with self._moved:
                self._moved.wait_for(lambda: bool(self._queue))
                place, files = self._queue.popleft()
            with Capture() as uploading:
                self._upload(place, files)
            with Capture():
                if uploading.error is not None:
                    self._fail(place, uploading.error)
                    limit = self._start.checkpointing.upload_failure_limit
                    if self._failed > (ASYNC_FAILURES_MAX_COUNT if limit is None else limit):
                        self._fatal = self._upload_error(place, uploading.error)
            with self._moved:
                self._uploading -= 1
                self._moved.notify_all()


def _what(error: BaseException) -> str:
    """Return an upload's error in words; one of ours says what failed by itself."""
    return str(error) if isinstance(error, UploadError) else f"{type(error).__name__}: {error}"


def _managed(storage: Storage, checkpoint: Checkpoint) -> str:
    """Return the name of a checkpoint that lies in the run's storage."""
    name = storage.name_of(checkpoint)
    if name is None:
        raise CheckpointNameError(
            f"{checkpoint} does not lie in the run's storage {storage.url}: it must, when it is not uploaded by runfold"
        )
    check_name(name)
    return name


def check_size(metrics: dict[str, Json]) -> None:
    """Raise `MetricsError` for metrics that fit into no report."""
    sizes = {key: len(msgspec.json.encode(value)) for key, value in metrics.items()}
    if (total := sum(sizes.values())) > VALUE_INLINE_MAX_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise MetricsError(
            f"metrics are {total} bytes, over value_inline_max_bytes ({VALUE_INLINE_MAX_BYTES}) of a report; "
            f"the largest is metrics.{largest} with {sizes[largest]}"
        )
