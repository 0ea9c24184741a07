"""Observers: callbacks that are told of a run off its log, beside it, each failing alone."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from runfold.happenings import Happening, Happenings
from runfold.keepsake import storage_of
from runfold.workers.callbacks import hook_of, is_gate
from runfold.workers.capture import Capture

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.events.beats import RunnerBeat
    from runfold.events.entry import Entry
    from runfold.events.state import RunState
    from runfold.follow import Onlooker, Told
    from runfold.workers.storage import Storage

CALLBACK_FAILURE_LIMIT: Final = 3
BACKLOG_MAX_COUNT: Final = 10_000
"""Entries that wait for slow observers; who is further behind is told no more, and can go on from its position."""
DRAIN_TIMEOUT_S: Final = 60.0
FINISH: Final = "after_controller_finish"
_LOG: Final = logging.getLogger("runfold.callbacks")


class Observers:
    """Tells callbacks what happens, in the thread that calls it. `position` is the last entry they were told all of.

    `failures` counts by callback what its hooks raised; after `failure_limit` it is told no more.
    """

    def __init__(
        self,
        callbacks: Sequence[object],
        storage_dir: Path,
        *,
        failure_limit: int = CALLBACK_FAILURE_LIMIT,
        position: int = -1,
        filesystem: object | None = None,
    ) -> None:
        self._callbacks = list(callbacks)
        self._limit = failure_limit
        self._happenings = Happenings(self._checkpoint)
        self._storage_dir = storage_dir
        self._filesystem = filesystem
        self._storage: Storage | None = None
        self.position = position
        self.failures: dict[str, int] = {}

    def tell(self, entry: Entry, state: RunState) -> None:
        """Tell of an entry, unless it was told before."""
        told = self._happenings.of(entry, state)
        if entry.n <= self.position:
            return
        for happening in told:
            self.happen(happening)
        self.position = entry.n

    def happen(self, happening: Happening) -> None:
        """Tell every callback that is still told anything."""
        for place, callback in enumerate(self._callbacks):
            name = f"{type(callback).__qualname__}[{place}]"
            if self.failures.get(name, 0) < self._limit:
                self._call(name, callback, happening)

    def _call(self, name: str, callback: object, happening: Happening) -> None:
        hook = happening.hook
        with Capture() as calling:
            on_event: Callable[[Happening], object] | None = getattr(callback, "on_event", None)
            if on_event is not None:
                on_event(happening)
            own = hook_of(callback, hook)
            if own is not None and not is_gate(callback, hook):
                own(*happening.arguments)
        if calling.error is None:
            return
        count = self.failures[name] = self.failures.get(name, 0) + 1
        _LOG.error("callback %s raised in %s; the run goes on", name, hook, exc_info=calling.error)
        if count >= self._limit:
            _LOG.error("callback %s has raised %d times (callback_failure_limit): it is told no more", name, count)

    def _checkpoint(self, state: RunState, name: str) -> object | None:
        if self._storage is None:
            self._storage = storage_of(state.job, self._storage_dir, self._filesystem)
        return None if self._storage is None else self._storage.checkpoint(name)


class Watching:
    """Observers in a thread of their own, fed as an onlooker: what they do holds nothing up.

    `close` waits until they were told everything, with bounded patience.
    """

    def __init__(self, observers: Observers, onlooker: Onlooker) -> None:
        self.observers = observers
        self._onlooker = onlooker
        self._queue: queue.Queue[tuple[Entry, RunState] | Happening | None] = queue.Queue(BACKLOG_MAX_COUNT)
        self._behind = False
        self._thread = threading.Thread(target=self._serve, name="runfold-callbacks", daemon=True)
        self._thread.start()

    def entry(self, told: Told) -> None:
        """Take an entry."""
        self._onlooker.entry(told)
        self._put((told.entry, told.state))

    def beat(self, beat: RunnerBeat) -> None:
        """Pass a beat on: observers are told what is in the log."""
        self._onlooker.beat(beat)

    def finish(self, happening: Happening) -> None:
        """Tell of the end, after everything else."""
        self._put(happening)

    def close(self) -> None:
        """Wait for the observers, and end."""
        until = time.monotonic() + DRAIN_TIMEOUT_S
        with contextlib.suppress(queue.Full):
            # Also behind a queue that is full: what waits in it is told first.
            self._queue.put(None, timeout=DRAIN_TIMEOUT_S)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            _LOG.error("callbacks have not come to an end within %g s: they are left alone", DRAIN_TIMEOUT_S)

    def _put(self, item: tuple[Entry, RunState] | Happening) -> None:
        if self._behind:
            return
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._behind = True
            _LOG.error(
                "callbacks are %d entries behind, and are told no more; `runfold observe` tells them on from entry %d",
                BACKLOG_MAX_COUNT,
                self.observers.position + 1,
            )

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Happening):
                self.observers.happen(item)
            else:
                self.observers.tell(*item)


def finished(state: RunState, result: object) -> Happening:
    """Return the last thing that observers are told: the result."""
    document = {"state": type(state.phase).__name__.lower(), "reason": state.phase.reason}
    return Happening(
        hook=FINISH,
        run=state.run,
        n=state.n,
        k=1_000_000,  # after everything else that is told of the last entry
        t=state.t,
        at=state.accepted_at,
        arguments=(result,),
        document={**document},
    )
