"""The callbacks of a rank: called around its life, and wrapped around what its training function does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Final, cast

from runfold.workers.callbacks import has

EXIT_ASKED: Final = 128 + signal.SIGTERM
"""How a rank ends that was asked to, and has called its callbacks before."""


class AskedToEnd(SystemExit):
    """The runner has asked this rank to end."""


class Around:
    """What to call, in the order of the callbacks."""

    def __init__(self, callbacks: Sequence[object] = ()) -> None:
        self._callbacks = list(callbacks)

    def context(self, hook: str) -> AbstractContextManager[object]:
        """Return the contexts of a hook, one in the other."""
        return self._entered(hook) if self._callbacks else contextlib.nullcontext()

    def call(self, hook: str) -> None:
        """Call a hook of every callback; the first that raises ends it."""
        for callback in self._callbacks:
            if has(callback, hook):
                cast("Callable[[], object]", getattr(callback, hook))()

    def heed_the_end(self) -> None:
        """Have a SIGTERM unwind the training function, so that the last hook is called."""
        if any(has(callback, "before_worker_shutdown") for callback in self._callbacks):
            signal.signal(signal.SIGTERM, _unwind)

    @contextlib.contextmanager
    def _entered(self, hook: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for callback in self._callbacks:
                if has(callback, hook):
                    make = cast("Callable[[], AbstractContextManager[object]]", getattr(callback, hook))
                    stack.enter_context(make())
            yield


def _unwind(_number: int, _frame: FrameType | None) -> None:
    # Once: a second one ends the process as it would have without us.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise AskedToEnd(EXIT_ASKED)
