"""`paused_progress`: a training function says that it will make no report for a while, and is not to be missed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Protocol

from runfold.workers.errors import NotInTrainingFunctionError
from runfold.workers.link import FromRank, Paused


class _Link(Protocol):
    def send(self, message: FromRank, limit_bytes: int = ...) -> None: ...


_link: _Link | None = None
_depth = 0
_lock = threading.Lock()


def attach(link: _Link | None) -> None:
    """Have pauses told over this link; None: no training function runs. Called by the session alone."""
    global _link, _depth  # the session is the process's, and so is this
    _link, _depth = link, 0


@contextlib.contextmanager
def paused_progress() -> Generator[None]:
    """Stop the clock that waits for this rank's reports, for as long as the block lasts: evaluation, export, a merge.

    Blocks may lie within each other, and threads may each have their own: the clock goes on when all have ended.
    """
    link = _link
    if link is None:
        raise NotInTrainingFunctionError(
            "runfold.paused_progress() can only be used in a training function that runfold runs"
        )
    _pause(link, 1)
    try:
        yield
    finally:
        _pause(link, -1)


def _pause(link: _Link, change: int) -> None:
    global _depth  # see above
    with _lock:
        before, _depth = _depth, _depth + change
        if (before > 0) != (_depth > 0):
            link.send(Paused(_depth > 0))
