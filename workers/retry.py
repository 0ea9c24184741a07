"""Trying again what a filesystem failed at: with back-off, so often, and no oftener."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from runfold.workers.files import is_final, transient

T = TypeVar("T")
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 32.0
JITTER: Final = 0.2
"""So that many ranks that failed together do not try again together."""
_LOG: Final = logging.getLogger("runfold.workers")


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often to try again, and after how long: doubled each time, a little more or less by chance."""

    retries_max: int = 3
    backoff_s: float = BACKOFF_S
    backoff_max_s: float = BACKOFF_MAX_S


def retried(call: Callable[[], T], retries: Retries, what: str, *, sleep: Callable[[float], None] = time.sleep) -> T:
    """Return what `call` returns; try it again after an `OSError` or a timeout, `retries_max` times; then raise it.

    What is final is raised at once.
    """
    wait_s = retries.backoff_s
    for tried in range(retries.retries_max):
        try:
            return call()
        except transient() as error:
            if is_final(error):
                raise
            _LOG.warning("%s: %s: %s; trying again (%d)", what, type(error).__name__, error, tried + 1)
        sleep(wait_s * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311  # no secret: it spreads retries in time
        wait_s = min(2 * wait_s, retries.backoff_max_s)
    return call()
