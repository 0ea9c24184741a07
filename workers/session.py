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
from contextlib import AbstractContextManager
from enum import Enum
from typing import Final, Protocol

import msgspec

from runfold.events.base import Json
from runfold.events.limits import VALUE_INLINE_MAX_BYTES
from runfold.events.values import Unencodable, pack
from runfold.workers.errors import LinkError, MetricsError, NotAvailableError, NotInTrainingFunctionError
from runfold.workers.limits import REPLY_MARGIN_S
from runfold.workers.link import (
    Collect,
    Collected,
    CollectiveKind,
    FromRank,
    FromRunner,
    Refused,
    Report,
    Start,
)
from runfold.workers.payload import pickled, refusal, unpickled
from runfold.workers.ranklink import MessageTooLarge

UNSET_TIMEOUT: Final = -math.inf
"""As `timeout_s`: the run's `collective_timeout_s`."""


_SURELY_SMALL_BYTES: Final = VALUE_INLINE_MAX_BYTES // 6
"""As JSON a message is at most six times as long."""


class CheckpointUploadMode(Enum):
    """When a reported checkpoint is uploaded."""

    SYNC = "sync"
    ASYNC = "async"
    NO_UPLOAD = "no_upload"


class TrainContext:
    """Who this rank is, and in which run."""

    def __init__(self, start: Start) -> None:
        self._start = start

    def get_run_id(self) -> str:
        """Return the id of the run, as `runfold get` takes it."""
        return self._start.run

    def get_attempt(self) -> int:
        """Return the number of the attempt, from 1."""
        return self._start.attempt

    def get_experiment_name(self) -> str:
        """Return the name of the run, as given in its configuration."""
        return self._start.name

    def get_world_size(self) -> int:
        """Return how many ranks the group has."""
        return self._start.world_size

    def get_world_rank(self) -> int:
        """Return this rank's number in the group, from 0."""
        return self._start.rank

    def get_local_rank(self) -> int:
        """Return this rank's number among those on its node, from 0."""
        return self._start.local_rank

    def get_local_world_size(self) -> int:
        """Return how many ranks of the group are on this node."""
        return self._start.local_world_size

    def get_node_rank(self) -> int:
        """Return the number of this node in the group, from 0."""
        return self._start.node_rank

    def get_storage(self) -> object:
        """Not available in this version."""
        raise NotAvailableError(
            "get_storage: this version of runfold does not write to a run's storage yet; "
            "write to a path of your own from the training function"
        )


class Link(Protocol):
    """What a session speaks through: the socket to a runner (`RankLink`), or what stands in for it."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a report is numbered and sent."""
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


class Session:
    """The state behind the functions of this module in one rank process."""

    def __init__(self, link: Link, start: Start) -> None:
        self.context = TrainContext(start)
        self._link = link
        self._start = start
        self._collectives = 0
        self._collecting = threading.Lock()

    @property
    def reports(self) -> int:
        """How many reports have gone out."""
        return self._link.reports

    def report(self, metrics: Mapping[str, object]) -> None:
        """Send one report; returns when the kernel has it."""
        packed = _pack_metrics(metrics)
        step = packed.get("step")
        link = self._link
        with link.lock:
            # Numbered and sent under one lock: the runner sees the indices in order, whatever thread reports.
            index = link.reports
            message = Report(index, time.monotonic(), step if type(step) is int else None, packed)
            try:
                link.send(message, _SURELY_SMALL_BYTES)
            except MessageTooLarge:
                _check_size(packed)
                link.send(message)

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

    def _answer(self, number: int, kind: str, limit_s: float | None) -> Collected | Refused:
        deadline = None if limit_s is None else time.monotonic() + limit_s + REPLY_MARGIN_S
        while True:
            try:
                answer = self._link.receive(None if deadline is None else deadline - time.monotonic())
            except TimeoutError:
                raise LinkError(
                    f"{kind} #{number}: the runner of this rank did not answer, not even that time was up"
                ) from None
            # An older number is the answer to one that was left by an interrupt.
            if isinstance(answer, Collected | Refused) and answer.number == number:
                return answer


_active: Session | None = None


def activate(session: Session | None) -> None:
    """Make this the session of the process; None ends it. Called by the rank process alone."""
    global _active  # noqa: PLW0603  # the session is the process's: a training function may use any thread
    _active = session


def _left_behind() -> None:
    # A process forked from the rank shares its socket: one message from it would corrupt the rank's own.
    if _active is not None:
        _active.abandon()
        activate(None)


os.register_at_fork(after_in_child=_left_behind)


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


def _check_size(packed: dict[str, Json]) -> None:
    sizes = {key: len(msgspec.json.encode(value)) for key, value in packed.items()}
    if (total := sum(sizes.values())) > VALUE_INLINE_MAX_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise MetricsError(
            f"metrics are {total} bytes, over value_inline_max_bytes ({VALUE_INLINE_MAX_BYTES}) of a report; "
            f"the largest is metrics.{largest} with {sizes[largest]}"
        )


def report(
    metrics: Mapping[str, object],
    checkpoint: object | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Callable[..., object] | None = None,
    validation: object = False,
) -> None:
    """Record metrics: numbers, numpy and torch scalars, booleans, strings, None, dicts and lists of them.

    Costs microseconds and waits for nobody. A number under the key `step` is shown as the rank's step. A value
    that cannot be recorded raises `MetricsError` naming its key.
    """
    session = _session("report")
    if checkpoint is not None:
        raise NotAvailableError(
            "report(checkpoint=…): this version of runfold does not upload checkpoints yet; nothing was reported. "
            "Report the metrics alone, and save files to a path of your own"
        )
    if validation is not False:
        raise ValueError("report(validation=…) needs a checkpoint to validate")
    # The peer's parameters that say something about a checkpoint only.
    del checkpoint_dir_name, checkpoint_upload_mode, delete_local_checkpoint_after_upload, checkpoint_upload_fn
    session.report(metrics)


def get_context() -> TrainContext:
    """Return who this rank is, and in which run."""
    return _session("get_context").context


def get_checkpoint() -> object | None:
    """Return the checkpoint to continue from, None if there is none. This version never has one."""
    _session("get_checkpoint")
    return None


def barrier(timeout_s: float | None = UNSET_TIMEOUT) -> None:
    """Wait until every rank has called this; `CollectiveTimeoutError` names those that did not in time.

    `timeout_s` defaults to the run's `collective_timeout_s`; None waits for ever.
    """
    _session("barrier").collect("barrier", None, timeout_s)


def broadcast_from_rank_zero(data: object, timeout_s: float | None = UNSET_TIMEOUT) -> object:
    """Return rank 0's `data` in every rank; what the others give is not looked at. Every rank must call it."""
    session = _session("broadcast_from_rank_zero")
    kind: CollectiveKind = "broadcast_from_rank_zero"
    is_source = session.context.get_world_rank() == 0
    values = session.collect(kind, pickled(kind, data) if is_source else None, timeout_s)
    return data if is_source else unpickled(values[0])


def all_gather(data: object, timeout_s: float | None = UNSET_TIMEOUT) -> list[object]:
    """Return what every rank gave, in the order of their numbers. Every rank must call it."""
    session = _session("all_gather")
    values = session.collect("all_gather", pickled("all_gather", data), timeout_s)
    return [unpickled(value) for value in values]
