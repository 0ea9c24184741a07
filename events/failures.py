"""What can fail, which budget it spends, and which failure counts as the first (one table).

The order of the table is the order of first cause: a kind further up is preferred over one further down,
whenever both were seen in one attempt; within a kind the earlier source time wins, never the order of arrival.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from runfold.events.base import Cause, Value

Budget = Literal["worker", "startup", "preemption", "hang"]
FailureKind = Literal[
    "preempted",
    "oom",
    "signal",
    "user",
    "exit",
    "load",
    "runner",
    "node",
    "placement",
    "start_timeout",
    "rendezvous",
    "fetch",
    "storage",
    "hang",
    "peer",
    "controller",
]


class KindRule(Value, frozen=True):
    """One row: the budget while RUNNING, the budget before it (None: never retried), whose fault, in words."""

    running: Budget | None
    starting: Budget | None
    platform: bool
    meaning: str


FAILURE_KINDS: Final[dict[FailureKind, KindRule]] = {
    "preempted": KindRule("preemption", "preemption", True, "its node was taken back"),
    "oom": KindRule("worker", "worker", False, "the kernel or a limit ended it for want of memory"),
    "signal": KindRule("worker", "worker", False, "a signal ended it"),
    "user": KindRule("worker", "worker", False, "the training function raised"),
    "exit": KindRule("worker", "worker", False, "it exited non-zero, or with 0 without a return"),
    "load": KindRule(None, None, False, "the entry point could not be loaded; never retried"),
    "runner": KindRule("worker", "startup", True, "its runner was lost"),
    "node": KindRule("worker", "startup", True, "its node was lost"),
    "placement": KindRule("startup", "startup", True, "its place could not be had"),
    "start_timeout": KindRule("startup", "startup", True, "it did not start in time"),
    "rendezvous": KindRule("startup", "startup", True, "the ranks could not meet"),
    "fetch": KindRule("startup", "startup", True, "a blob could not be fetched"),
    "storage": KindRule("worker", None, False, "the storage could not be used; never retried before ranks are at work"),
    "hang": KindRule("hang", "hang", False, "it made no progress"),
    "peer": KindRule("worker", "worker", False, "another rank's end broke its connection or collective"),
    "controller": KindRule(None, None, False, "the controller could not go on; never retried"),
}
"""Kind → rule, in order of first cause."""

NO_OTHER_PLACE: Final = "NoOtherPlace"
"""The type of the error of a run that begins again because some of its ranks wait for a place: their loss was paid."""

CAUSE_ORDER: Final[dict[FailureKind, int]] = {kind: place for place, kind in enumerate(FAILURE_KINDS)}

_MASK: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")


class ErrorInfo(Value, frozen=True, kw_only=True):
    """One error as told by a rank or about it.

    `message` and `traceback` hold at most `ERROR_INLINE_MAX_BYTES` together; `blob` is the digest of the whole text.
    `where` is the innermost frame of the user's own code, `file:line in function`.
    """

    type: str
    message: str
    kind: FailureKind
    traceback: str | None = None
    where: str | None = None
    blob: str | None = None

    @property
    def headline(self) -> str:
        """The error on one line, at most 200 characters."""
        line = (f"{self.type}: {self.message}" if self.message else self.type).strip().partition("\n")[0]
        return line if len(line) <= 200 else line[:199] + "…"


class Failure(Value, frozen=True, kw_only=True):
    """A failure as kept in the state: who, what, when by the source's clock mapped to the run's, and its input."""

    kind: FailureKind
    attempt: int
    node: str
    error: ErrorInfo
    t: float
    cause: Cause
    rank: int | None = None
    life: int = 1
    exit_code: int | None = None
    signal: int | None = None


def masked(text: str) -> str:
    """Return `text` with numbers and addresses masked, to group alike errors of many ranks."""
    return _MASK.sub("#", text)


def cause_key(failure: Failure) -> tuple[int, float, int, str]:
    """Return what the order of first cause compares: kind, time, rank, node; never the order of arrival."""
    return (
        CAUSE_ORDER[failure.kind],
        failure.t,
        -1 if failure.rank is None else failure.rank,
        failure.node,
    )


def first_cause(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that counts as the first: by kind, then by time, then by rank. Order of arrival is ignored."""
    return min(failures, key=cause_key, default=None)
