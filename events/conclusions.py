"""Conclusions: what the controller itself observed about its timers, the beats it heard, and its own start."""

from __future__ import annotations

from typing import Literal

import msgspec

from runfold.events.base import Origin, Value, snake_case

Timer = Literal[
    "start",
    "import",
    "backoff",
    "shutdown",
    "preemption",
    "placement",
    "checkpoint",
    "task",
    "final",
    "dwell",
    "resize",
    "replica",
    "replica_backoff",
    "cause",
]


class Decider(Value, frozen=True, kw_only=True):
    """Who decides: version of runfold, names of the policies, settings that change decisions."""

    version: str
    policies: tuple[str, ...] = ()
    settings: dict[str, str] = {}


class Conclusion(Value, frozen=True, kw_only=True, tag_field="kind", tag=snake_case):
    """An observation by the controller; enters `decide` as an input like any fact."""


class JobTaken(Conclusion, frozen=True, kw_only=True):
    """The job that makes the run: its sequence in JOBS and its digest (the job itself stands in `RunAccepted`)."""

    digest: str
    warnings: tuple[str, ...] = ()
    origin: Origin | None = msgspec.field(default=None, name="from")


class ControllerStarted(Conclusion, frozen=True, kw_only=True):
    """A controller owns the run from here on."""

    controller: str
    decider: Decider


class TimerFired(Conclusion, frozen=True, kw_only=True):
    """A timer of the state was due at `deadline_t` of the run's clock."""

    timer: Timer
    deadline_t: float


class SilenceConcluded(Conclusion, frozen=True, kw_only=True):
    """A source said nothing for `silence_s` of observed time; `lost`: through the whole timeout, with evidence.

    A silence of 0 s says that it is heard again. `incarnation`: whose silence it is; 0: whoever speaks now.
    """

    source: str
    silence_s: float
    lost: bool
    reason: str
    incarnation: int = 0


class ProgressStopped(Conclusion, frozen=True, kw_only=True):
    """Ranks made no report for `quiet_s`; `limit_s` is the `progress_timeout_s` of the job, or None: only shown.

    No ranks says that all of them move again. `attempt`: whose ranks; 0: those of the present one.
    """

    ranks: tuple[int, ...]
    quiet_s: float
    limit_s: float | None
    stacks: dict[str, str] = {}
    attempt: int = 0


class LogCopied(Conclusion, frozen=True, kw_only=True):
    """The entries up to here were verified and copied from `source` into another generation of the log.

    `epoch` is above every epoch that anything kept elsewhere names: what was shown of entries that are lost counts no
    more. `by`: who writes the entry that says so, and no other.
    """

    generation: int
    source: str
    epoch: int
    by: str


class MessageMalformed(Conclusion, frozen=True, kw_only=True):
    """A message on one of the run's inbox subjects could not be read; counted, and ignored otherwise."""

    subject: str
    reason: str
    digest: str
    origin: Origin | None = msgspec.field(default=None, name="from")


AnyConclusion = (
    MessageMalformed | JobTaken | ControllerStarted | LogCopied | TimerFired | SilenceConcluded | ProgressStopped
)
