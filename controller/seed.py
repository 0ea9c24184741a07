"""How a run's loop begins and how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from runfold.events.conclusions import Decider, JobTaken
from runfold.events.entry import Head
from runfold.events.job import Job
from runfold.events.snapshot import StateSnapshot
from runfold.events.state import RunState, Unborn


@dataclass(frozen=True, slots=True)
class Identity:
    """Who decides: the controller's id (its seat), and what decides."""

    controller: str
    decider: Decider


@dataclass(frozen=True, slots=True)
class NewRun:
    """A job taken from the queue: the state before entry 0, and the input that entry 0 records of it."""

    state: Unborn
    taken: JobTaken


@dataclass(frozen=True, slots=True)
class Kept:
    """A head kept outside the log: by what, and in which epoch it was kept."""

    keeper: str
    head: Head
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run as its log has it: state and head, the last sequence on its subject, the broker's time of its head.

    `accepted_at` is the `at` of entry 0; `strays_count` messages of the subject are no entries. With `base` only what
    follows that snapshot was read, and the heads `unchecked` were not compared.
    """

    state: RunState
    head: Head
    accepted_at: str
    last_sequence: int
    stored_at_s: float
    strays_count: int
    base: StateSnapshot | None = None
    unchecked: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The run of this job is over: its terminal entry and its last assignment stand."""

    job: Job


@dataclass(frozen=True, slots=True)
class Dropped:
    """The run is another controller's now, as far as can be seen; by what."""

    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Nothing is appended any more, the group keeps its last assignment; why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The controller stops; the run goes on and is taken over at the next start."""


@dataclass(frozen=True, slots=True)
class Unwritten:
    """The run has no log yet: its job is still in the queue, and comes again."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The run is over and was given back: its log holds the last entry alone, and its archive the rest."""


Ending = Ended | Dropped | Quarantined | Stopped | Unwritten | Collected


class LimitReached(Exception):
    """Something of a run is larger than it may be; nothing was lost, and nothing more can be done for the run."""


class Over(Exception):
    """A run's loop ends now, in this turn."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        super().__init__(ending)
