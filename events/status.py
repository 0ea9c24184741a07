"""The status: what the log says of a run right now, for people and programs (`get RUN -o json`)."""

from __future__ import annotations

from typing import Literal

from runfold.events.base import Document, Json, Value
from runfold.events.beats import RankPhase
from runfold.events.checkpoints import CheckpointState
from runfold.events.entry import Head
from runfold.events.failures import Budget, FailureKind
from runfold.events.stacks import Doing
from runfold.events.transitions import StateName


class RankStatus(Document, frozen=True, kw_only=True):
    """One rank as the log has it; `index` is its last report's, −1 before the first.

    `doing`, `where` and `stacks` (a blob) are of when it was last looked at in this attempt.
    """

    rank: int
    node: str
    phase: RankPhase
    step: int | None = None
    index: int = -1
    doing: Doing | None = None
    where: str | None = None
    stacks: str | None = None


class BudgetStatus(Document, frozen=True, kw_only=True):
    """A budget: spent of limit; limit −1 is unlimited."""

    spent: int
    limit: int


class ErrorStatus(Document, frozen=True, kw_only=True):
    """The first cause."""

    rank: int | None
    type: str
    message: str
    kind: FailureKind
    where: str | None = None
    node: str = ""
    attempt: int = 0


class TimeoutStatus(Value, frozen=True, kw_only=True):
    """A timeout that runs: its limit (None: it waits for ever), when it is due on the run's clock, what is counted.

    `counted_s` holds, by source or rank, seconds of observed time as the log has them.
    """

    limit_s: float | None
    due_t: float | None = None
    counted_s: dict[str, float] = {}


class DroppedStatus(Document, frozen=True, kw_only=True):
    """Voices that changed nothing."""

    stale: int = 0
    foreign: int = 0
    malformed: int = 0


class CheckpointStatus(Value, frozen=True, kw_only=True):
    """A committed checkpoint: its report's index, and what came of its validation if there was to be one."""

    name: str
    index: int
    attempt: int
    status: CheckpointState = "committed"
    score: float | None = None
    doubtful: bool = False


Exclusion = Literal["failed too often", "was taken back", "will be taken back"]
"""Why a run stays off a node."""


class Status(Document, frozen=True, kw_only=True):
    """The document. `since` and `cause` belong to the state shown; times are RFC 3339 and run-clock seconds.

    `checkpoints` are those that are kept, the best last; `unsettled`: reports of this attempt, by index, whose
    checkpoint is not committed yet. `excluded_nodes`: those that the next group stays off, and why.
    """

    v: int = 1
    kind: Literal["status"] = "status"
    run: str
    name: str = ""
    state: StateName
    since: str
    since_t: float
    reason: str
    cause: str = ""
    attempt: int = 0
    world_size: int = 0
    ranks: tuple[RankStatus, ...] = ()
    budgets: dict[Budget, BudgetStatus] = {}
    metrics: dict[str, Json] | None = None
    checkpoint: str | None = None
    checkpoints: tuple[CheckpointStatus, ...] = ()
    unsettled: tuple[int, ...] = ()
    error: ErrorStatus | None = None
    waiting: str | None = None
    timeouts: dict[str, TimeoutStatus] = {}
    warnings: tuple[str, ...] = ()
    requests: dict[str, str] = {}
    return_value: Json = None
    head: Head
    t: float = 0.0
    epoch: int
    controller: str
    accepted_at: str = ""
    dropped: DroppedStatus = DroppedStatus()
    quarantined: str | None = None
    excluded_nodes: dict[str, Exclusion] = {}

    @property
    def terminal(self) -> bool:
        """Whether the run is over."""
        return self.state in ("finished", "errored", "aborted")

    @property
    def order(self) -> tuple[int, int, bool]:
        """What readers compare: a status not newer than the one held is ignored; quarantine comes after its entry."""
        return (self.epoch, self.head.n, self.quarantined is not None)
